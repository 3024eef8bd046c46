"""Two completions in columns, whatever their names, with or without a verdict."""

from collections.abc import Sequence
from typing import ClassVar

from rlhf_pipeline.feedback.datasets.shapes.base import PREFERENCES, Cells, FileShape


class PairColumns(FileShape):
    """Columns that `--map` or their usual names bind; also votes alone, by the ids of pairs."""

    name: ClassVar[str] = "pairs"
    title: ClassVar[str] = "two completions a row"

    @classmethod
    def matches(cls, columns: Sequence[str], sample: Sequence[Cells]) -> bool:
        return has_sides(columns)


class VoteColumns(FileShape):
    """Votes on pairs that are stored or come before them, which they name by id."""

    name: ClassVar[str] = "votes"
    title: ClassVar[str] = "votes on pairs of other files"
    required: ClassVar[Sequence[Sequence[str]]] = (
        ("source_pair_id", "comparison_id"),
        ("choice", "winner", "signed_strength", "winner_a", "score_a"),
    )

    @classmethod
    def matches(cls, columns: Sequence[str], sample: Sequence[Cells]) -> bool:
        verdicts = ("choice", "winner", "signed_strength", "winner_a")
        texts = ("prompt", "completion_a", "chosen", "completion", "fields", "data")
        return (
            has_any(columns, "source_pair_id", "comparison_id")
            and has_any(columns, *verdicts)
            and not has_any(columns, *texts)
        )


def has_sides(columns: Sequence[str]) -> bool:
    return has_any(columns, "completion_a") and has_any(columns, "completion_b")


def has_any(columns: Sequence[str], *names: str) -> bool:
    """Whether a column has one of our names, or one that is known to mean it."""
    return any(column in columns for name in names for column in (name, *PREFERENCES.get(name, ())))

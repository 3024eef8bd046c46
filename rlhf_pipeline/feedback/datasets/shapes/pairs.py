"""Two completions in columns, whatever their names, with or without a verdict."""

from collections.abc import Mapping, Sequence
from typing import ClassVar

from rlhf_pipeline.core.records import Choice
from rlhf_pipeline.feedback.datasets.mapping import Names
from rlhf_pipeline.feedback.datasets.shapes.base import (
    COMPANIONS,
    PREFERENCES,
    VERDICTS,
    Cells,
    FileShape,
)

VERDICT_COLUMNS = ("choice", "winner", "signed_strength", "winner_a", "score_a")


class PairColumns(FileShape):
    """Columns that `--map` or their usual names bind; also votes alone, by the ids of pairs."""

    name: ClassVar[str] = "pairs"
    title: ClassVar[str] = "two completions a row"

    @classmethod
    def matches(cls, columns: Sequence[str], sample: Sequence[Cells]) -> bool:
        return has_sides(columns)

    @property
    def has_verdicts(self) -> bool:
        return any(name in self.binding for name in VERDICT_COLUMNS)


class StanfordPreferences(FileShape):
    """A post with two answers; the label is 1 where A has more votes of readers, else 0."""

    name: ClassVar[str] = "shp"
    title: ClassVar[str] = "Stanford Human Preferences: a post with two answers and a label"
    names: ClassVar[Names] = {
        **{n: PREFERENCES[n] for n in PREFERENCES if n not in (*COMPANIONS, *VERDICTS)},
        "prompt": ("history", "post"),
        "choice": ("labels",),
    }
    required: ClassVar[Sequence[Sequence[str]]] = (("prompt",),)
    metadata: ClassVar[tuple[str, ...]] = (
        *("post_id", "upvote_ratio", "score_ratio", "seconds_difference", "score_A", "score_B"),
        *("c_root_id_A", "c_root_id_B", "created_at_utc_A", "created_at_utc_B"),
    )
    words: ClassVar[Mapping[str, Choice]] = {"1": Choice.A, "0": Choice.B}

    @classmethod
    def matches(cls, columns: Sequence[str], sample: Sequence[Cells]) -> bool:
        return {"human_ref_A", "human_ref_B", "labels"} <= {*columns}


class VoteColumns(FileShape):
    """Votes on pairs that are stored or come before them, which they name by id."""

    name: ClassVar[str] = "votes"
    title: ClassVar[str] = "votes on pairs of other files"
    required: ClassVar[Sequence[Sequence[str]]] = (
        ("source_pair_id", "comparison_id"),
        VERDICT_COLUMNS,
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

"""Binds the columns of a file to our column names.

Flags of the command line take precedence over the aliases listed here.
"""

from collections.abc import Mapping as Mappings
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Self

from pydantic import BaseModel, ConfigDict

from rlhf_pipeline.core.errors import DatasetError
from rlhf_pipeline.core.records import Choice
from rlhf_pipeline.generate.prompts.dataset import COMPANIONS, MESSAGE_COLUMNS

# Our name -> aliases in other data sets. Our name takes precedence, then the first alias found.
Names = dict[str, tuple[str, ...]]

COMPARISONS: Names = {
    "prompt": ("question", "instruction"),
    "completion_a": ("response_a", "answer_a", "output_a", "a"),
    "completion_b": ("response_b", "answer_b", "output_b", "b"),
    "source_pair_id": ("pair_id",),
    "source": (),
    "category": ("domain",),
    "model_version_a": ("model_a", "generator_1"),
    "model_version_b": ("model_b", "generator_2"),
    "split_group": ("group",),
    "split": (),
    "gold": (),
    "tags": (),
}
# Additional columns of exported comparisons, which are imported unchanged.
OWN_COMPARISONS: Names = {
    name: ()
    for name in (
        "comparison_id",
        "prompt_id",
        "completion_a_id",
        "completion_b_id",
        "day",
        "position",
        "seed",
        "repeat_of",
        "flag",
    )
}
VOTES: Names = {
    "comparison_id": (),
    "source_pair_id": ("pair_id",),
    "annotator_id": ("annotator", "worker_id"),
    "choice": ("label", "preferred", "preference"),
    "strength": (),
    "voted_at": ("submitted_at", "timestamp", "created_at", "tstamp"),
    "duration_s": (),
    "reason": ("comment",),
    "stated_confidence": ("confidence",),
    "task_id": (),
    "is_blind": (),
    "annotator_kind": (),
    "annotator_group": (),
}
OWN_VOTES: Names = {"is_superseded": ()}
PROMPTS: Names = {
    "text": ("prompt", "instruction", "question", *MESSAGE_COLUMNS),
    **{name: () for name in COMPANIONS},
    "domain": ("tag", "topic"),
    "category": (),
    "difficulty": (),
    "reference": ("answer",),
}
SCHEMA = "schema"  # column that identifies the kind and version of exported rows


class ColumnMapping(BaseModel):
    """What the user says about columns and words: `columns` as our name -> column of the file,
    `choices` as word of the file -> choice.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    columns: dict[str, str] = {}
    choices: dict[str, Choice] = {}

    @classmethod
    def read(cls, flags: Sequence[str], words: Sequence[str] = ()) -> Self:
        """Read `name=column` flags and `word=choice` words. Raises DatasetError for others."""
        choices = dict(_split_flag("--choice", word) for word in words)
        unknown = {*choices.values()} - {*Choice}
        if unknown:
            raise DatasetError(
                f"--choice: {', '.join(sorted(unknown))} is not a choice. Write WORD=CHOICE with "
                f"one of {', '.join(Choice)}."
            )
        return cls(columns=dict(_split_flag("--map", f) for f in flags), choices=choices)

    def rename(self, renamed: Mappings[str, str]) -> Self:
        """The mapping of a file some of whose columns were renamed."""
        columns = {
            name: renamed.get(column.strip(), column) for name, column in self.columns.items()
        }
        return self.model_copy(update={"columns": columns})


def _split_flag(option: str, flag: str) -> tuple[str, str]:
    name, equals, value = flag.partition("=")
    if not (name and equals and value):
        example = "prompt=question" if option == "--map" else "first=a"
        raise DatasetError(f"{option} {flag!r}: write NAME=VALUE, such as {option} {example}.")
    return name.strip(), value.strip()


@dataclass(frozen=True)
class Binding:
    """Our names bound to the columns of one file."""

    columns: dict[str, str]
    unused: list[str]

    def __contains__(self, name: str) -> bool:
        return name in self.columns

    def select_cells(self, cells: Mappings[str, Any]) -> dict[str, Any]:
        """The cells of a row by our names; columns that the row lacks are None."""
        return {name: cells.get(column) for name, column in self.columns.items()}


def bind(
    names: Names,
    mapping: ColumnMapping,
    columns: Sequence[str],
    *,
    what: str,
    required: Sequence[Sequence[str]],
) -> Binding:
    """Bind `names` to the file's `columns`; at least one name of each group in `required` must be
    bound.

    Raises DatasetError, which lists the known names or columns, for an unknown name or column and
    for a missing required one.
    """
    file_columns = ", ".join(columns) or "none"
    strangers = sorted(set(mapping.columns) - set(names))
    if strangers:
        raise DatasetError(
            f"{what}: unknown names {strangers}. Known names: {', '.join(names)}. Write --map "
            "our_name=their_column."
        )
    absent = sorted(
        f"{name}={column}" for name, column in mapping.columns.items() if column not in columns
    )
    if absent:
        raise DatasetError(
            f"{what}: the mapping names missing columns: {', '.join(absent)}. The file has: "
            f"{file_columns}."
        )
    bound = {}
    for name, aliases in names.items():
        source_column = mapping.columns.get(name) or next(
            (column for column in (name, *aliases) if column in columns), None
        )
        if source_column is not None:
            bound[name] = source_column
    for group in required:
        if not any(name in bound for name in group):
            known_names = ", ".join(alias for name in group for alias in (name, *names[name]))
            raise DatasetError(
                f"{what}: no column for {' or '.join(group)}. The file has: {file_columns}. Known "
                f"names: {known_names}. Name the column with --map {group[0]}=COLUMN."
            )
    return Binding(
        bound, [column for column in columns if column not in bound.values() and column != SCHEMA]
    )

"""Which column of a file is which of our columns. Knows names and aliases; reads no data row.

What is said on the command line wins over the mapping file, that over the names known here.
"""

from collections.abc import Mapping as Mappings
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Self

import yaml
from pydantic import BaseModel, ConfigDict, Field, ValidationError

from rlhf_pipeline.documents import parse_yaml
from rlhf_pipeline.errors import DatasetError
from rlhf_pipeline.records import Choice

# Our name: names under which it is known elsewhere, first match wins after our own.
Names = dict[str, tuple[str, ...]]

COMPARISONS: Names = {
    "prompt": ("question", "instruction"),
    "completion_a": ("response_a", "answer_a", "output_a", "a"),
    "completion_b": ("response_b", "answer_b", "output_b", "b"),
    "source_pair_id": ("pair_id",),
    "source": (),
    "category": ("domain",),
    "model_version_a": ("model_a",),
    "model_version_b": ("model_b",),
    "split_group": ("group",),
    "split": (),
    "gold": (),
}
# Of rows that this pipeline exported: they come back as they were.
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
    "voted_at": ("submitted_at", "timestamp", "created_at"),
    "duration_s": (),
    "reason": ("comment",),
    "stated_confidence": ("confidence",),
    "task_id": (),
    "annotator_kind": (),
}
OWN_VOTES: Names = {"is_superseded": ()}
PROMPTS: Names = {
    "text": ("prompt", "instruction", "question"),
    "domain": ("tag", "topic"),
    "category": (),
    "difficulty": (),
    "reference": ("answer",),
}
KNOWN: dict[str, Names] = {"comparisons": COMPARISONS, "votes": VOTES, "prompts": PROMPTS}
SCHEMA = "schema"  # the column in which an export says what its rows are


class ColumnMapping(BaseModel):
    """What a mapping file says: `columns` as `our name: column of the file`, `choices` as `word of
    the file: a|b|tie|both_bad|skip`.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    columns: dict[str, str] = Field(default={}, description="our name: column of the file")
    choices: dict[str, Choice] = Field(
        default={}, description="word of the file: a, b, tie, both_bad or skip"
    )

    @classmethod
    def read(cls, path: Path | None, flags: Sequence[str] = ()) -> Self:
        """Of a YAML file and `name=column` flags, which win. Raises DatasetError for what is
        neither.
        """
        said: dict[str, Any] = {}
        if path is not None:
            try:
                said = parse_yaml(path.read_text(encoding="utf-8")) or {}
            except (OSError, UnicodeDecodeError, yaml.YAMLError) as cause:
                raise DatasetError(
                    f"Mapping {path} cannot be read as YAML: {cause}. Write `columns:` and below "
                    "it `our_name: their_column`."
                ) from cause
        if isinstance(said, dict) and isinstance(said.get("choices"), dict):
            said = said | {
                "choices": {str(word): choice for word, choice in said["choices"].items()}
            }
        try:
            mapping = cls.model_validate(said)
        except ValidationError as cause:
            problems = "; ".join(
                f"{'.'.join(map(str, e['loc'])) or 'the file'}: {e['msg']}" for e in cause.errors()
            )
            raise DatasetError(
                f"Mapping {path}: {problems}. It holds `columns:` and `choices:`, see "
                "docs/importing.md."
            ) from cause
        columns = dict(mapping.columns)
        for flag in flags:
            name, equals, column = flag.partition("=")
            if not (name and equals and column):
                raise DatasetError(
                    f"--map {flag!r}: write --map our_name=their_column, such as --map "
                    "prompt=question."
                )
            columns[name.strip()] = column.strip()
        return mapping.model_copy(update={"columns": columns})


@dataclass(frozen=True)
class Binding:
    """Our names bound to the columns of one file."""

    columns: dict[str, str]
    unused: list[str]

    def __contains__(self, name: str) -> bool:
        return name in self.columns

    def select_cells(self, cells: Mappings[str, Any]) -> dict[str, Any]:
        """The cells of a row under our names; what the file does not have is None."""
        return {name: cells.get(column) for name, column in self.columns.items()}


def bind(
    names: Names,
    mapping: ColumnMapping,
    columns: Sequence[str],
    *,
    what: str,
    required: Sequence[Sequence[str]],
) -> Binding:
    """Find `names` among the file's `columns`; of each group of `required` at least one must be
    there.

    Raises DatasetError for a name or column that does not exist and for a required one that is
    missing, with what there is.
    """
    shown = ", ".join(columns) or "none"
    strangers = sorted(set(mapping.columns) - set(names))
    if strangers:
        raise DatasetError(
            f"{what}: {strangers} are no columns of ours. They are: {', '.join(names)}. The file's "
            "own name stands behind the =."
        )
    absent = sorted(
        f"{name}={column}" for name, column in mapping.columns.items() if column not in columns
    )
    if absent:
        raise DatasetError(
            f"{what}: the mapping names columns that the file does not have: {', '.join(absent)}. "
            f"It has: {shown}."
        )
    bound = {}
    for name, aliases in names.items():
        found = mapping.columns.get(name) or next(
            (column for column in (name, *aliases) if column in columns), None
        )
        if found is not None:
            bound[name] = found
    for group in required:
        if not any(name in bound for name in group):
            known = ", ".join(alias for name in group for alias in (name, *names[name]))
            raise DatasetError(
                f"{what}: no column for {' or '.join(group)}. The file has: {shown}. Known names: "
                f"{known}. Say which it is with --map {group[0]}=COLUMN."
            )
    return Binding(
        bound, [column for column in columns if column not in bound.values() and column != SCHEMA]
    )

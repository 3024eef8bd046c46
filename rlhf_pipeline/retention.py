"""Decides what may be deleted: rules over records. Deletes nothing itself.

Never deleted: votes, decisions, the audit chain, predictions, evaluation splits, and the records
and metrics of models and runs.
"""

import re
from collections.abc import Collection, Iterable, Sequence
from datetime import datetime
from typing import Literal

from pydantic import Field

from rlhf_pipeline.records import Promotion, Record
from rlhf_pipeline.registry import StoredVersion

RetentionKind = Literal[
    "runs",
    "ticks",
    "alert messages",
    "reports",
    "completions",
    "embeddings",
    "training files",
    "retraining sets",
    "model files",
]


class DeletableItem(Record):
    """Something that retention deletes, or would delete."""

    kind: RetentionKind
    name: str
    n: int = Field(default=1, description="number of things under this name")
    n_bytes: int | None = Field(default=None, description="None where the storage does not say")


class DatedFile(Record):
    """A file or folder, and when it was last written."""

    path: str
    written_at: datetime
    n_bytes: int


def removable_versions(
    versions: Sequence[StoredVersion], *, needed: Collection[str], n_latest: int
) -> list[StoredVersion]:
    """Versions of one model whose files may be deleted: never promoted, without alias, not needed,
    and older than the `n_latest` such versions.

    Files that a kept version shares stay. `needed` are labels, `name@version`.
    """
    spare = [
        v for v in versions if v.version.label not in needed and not v.aliases and not v.is_in_use
    ]
    beyond = sorted(spare, key=lambda v: v.version.version)[:-n_latest]
    labels = {v.version.label for v in beyond}
    shared = {v.version.uri for v in versions if v.version.label not in labels}
    return [v for v in beyond if v.removed_at is None and v.version.uri not in shared]


def needed_versions(
    versions: Iterable[StoredVersion], promotions: Iterable[Promotion], unfinished: Iterable[Record]
) -> set[str]:
    """Labels of past and present champions, of the versions they were trained from, and of those
    that `unfinished` decisions name.
    """
    promoted = {
        f"{promotion.model_name}@{number}"
        for promotion in promotions
        for number in (promotion.version, promotion.previous_version)
        if number is not None
    }
    parents = {
        v.version.parent
        for v in versions
        if v.version.label in promoted and v.version.parent is not None
    }
    named = {
        label
        for decision in unfinished
        for label in re.findall(r"[\w.-]+@\d+", decision.model_dump_json())
    }
    return promoted | parents | named


def old_files(files: Iterable[DatedFile], *, before: datetime) -> list[DatedFile]:
    """Files that were last written before a moment, oldest first."""
    return sorted(
        (file for file in files if file.written_at < before),
        key=lambda file: (file.written_at, file.path),
    )

"""Imports the rows of a file as votes of this project, in order of time."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from functools import partial
from typing import Any, Protocol

from rlhf_pipeline.core.errors import DatasetError
from rlhf_pipeline.core.protocols import Progress, ignore_progress
from rlhf_pipeline.core.records import AnnotatorKind, Choice, NewVote, content_id
from rlhf_pipeline.core.row_files import FileRow, RowFile, chunks
from rlhf_pipeline.feedback.datasets import mapping
from rlhf_pipeline.feedback.datasets.cells import (
    MomentParser,
    RowRejected,
    is_missing,
    parse_choice,
    parse_enum,
    parse_identifier,
    parse_integer,
    parse_number,
    parse_optional_flag,
    parse_optional_identifier,
    parse_optional_text,
)
from rlhf_pipeline.feedback.datasets.mapping import Binding, bind
from rlhf_pipeline.feedback.datasets.preference import ExportedRows, ParsedRow, RefusedRow
from rlhf_pipeline.feedback.datasets.pseudonyms import Pseudonyms
from rlhf_pipeline.feedback.datasets.rejects import ImportCounts, Rejects
from rlhf_pipeline.feedback.datasets.staging import StagedVotes

REQUIRED = [("comparison_id", "source_pair_id"), ("annotator_id",), ("choice",)]
MAX_STRENGTH = 4
STORED_DIFFERENTLY = (
    "a vote of this annotator with the same time and choice is stored with another strength, "
    "duration, reason or task. Votes cannot be changed: import the file with the same mapping as "
    "before"
)
IDENTITY = (
    "comparison_id",
    "annotator_id",
    "choice",
    "strength",
    "voted_at",
    "duration_s",
    "reason",
    "task_id",
)

VoteIdentity = tuple[str, str, str, datetime | None]


class SourceIds(Protocol):
    """The part of `store.comparisons` that finds comparisons by source id."""

    def with_source_ids(self, ids: Sequence[str]) -> dict[str, str]: ...


class StoredVotes(Protocol):
    """The part of `store.imports` that finds stored comparisons and votes."""

    def find_pair_keys(self, comparison_ids: Sequence[str]) -> dict[str, str]: ...
    def find_known_keys(self, idempotency_keys: Sequence[str]) -> set[str]: ...
    def find_votes(self, comparison_ids: Sequence[str]) -> set[VoteIdentity]: ...


class VoteWriter(Protocol):
    """The part of `store.votes` that records votes."""

    def cast_all(self, new_votes: Iterable[NewVote]) -> Any: ...


@dataclass
class VoteImport:
    """Imports one file of votes: `read` puts new votes into `staging`, `record` casts them by time,
    undated ones last.

    Nothing is recorded before the whole file is read, so a truncated file imports nothing.
    """

    comparisons: SourceIds
    stored: StoredVotes
    rejects: Rejects
    staging: StagedVotes
    clock: MomentParser
    pseudonyms: Pseudonyms | None  # None keeps annotator ids unchanged
    are_undated: bool = False
    counts: ImportCounts = field(default_factory=ImportCounts)
    unused: list[str] = field(
        default_factory=list
    )  # columns of the file that were not bound to a name
    days: set[str] = field(default_factory=set)  # days of new votes with a time
    n_undated: int = 0
    # new votes that repeat choice and time of another annotator's stored vote on the comparison
    n_repeating: int = 0
    groups: dict[str, str | None] = field(default_factory=dict)  # by annotator, as the file has it

    def read(
        self,
        rows: RowFile,
        names: mapping.ColumnMapping,
        what: str,
        progress: Progress = ignore_progress,
    ) -> None:
        """Read all rows of the file: stage new votes, count the others. Raises DatasetError."""
        own = ExportedRows("vote", rows)
        binding = bind(
            mapping.VOTES | (mapping.OWN_VOTES if own else {}),
            names,
            rows.columns,
            what=what,
            required=REQUIRED,
        )
        self.unused = binding.unused
        if "voted_at" not in binding and not self.are_undated:
            raise DatasetError(
                f"{what}: no column for voted_at, the time of the vote. The file has: "
                f"{', '.join(rows.columns)}. Name the column with --map voted_at=COLUMN, or "
                "import votes without times with --undated: they count for training, but not for "
                "drift."
            )
        seen_keys: set[str] = set()
        for batch in chunks(rows):
            self._stage(batch, names.choices, binding, own, seen_keys)
            progress(rows.position, rows.size, "reading")

    def record(self, votes: VoteWriter, progress: Progress = ignore_progress) -> None:
        """Record the staged votes. After an error or a kill, import the same file again: only
        missing votes are cast.
        """
        for batch in self.staging:
            votes.cast_all(NewVote(origin="import", **vote) for vote in batch)
            self.counts = self.counts.plus(imported=len(batch))
            progress(self.counts.imported, len(self.staging), "casting")

    def _stage(
        self,
        batch: Sequence[FileRow],
        words: Mapping[str, Choice],
        binding: Binding,
        own: ExportedRows,
        seen_keys: set[str],
    ) -> None:
        read, refusals = own.parse(batch, binding, partial(self._build_vote, words=words))
        matches = self._match_comparisons(read, refusals)
        self.rejects.add_all(refusals)
        keys = import_keys([vote for _, vote, _ in matches])
        known_keys = self.stored.find_known_keys(keys)
        turns = self.stored.find_votes(
            [
                vote["comparison_id"]
                for key, (_, vote, _) in zip(keys, matches, strict=True)
                if key not in known_keys
            ]
        )
        turns_of_all = {(comparison, choice, at) for comparison, _, choice, at in turns if at}
        n_merged = n_known = 0
        new: list[tuple[int, dict[str, Any]]] = []
        conflicts: list[RefusedRow] = []
        for key, (row, vote, is_own) in zip(keys, matches, strict=True):
            is_stored = (
                vote["comparison_id"],
                vote["annotator_id"],
                vote["choice"],
                vote["voted_at"],
            ) in turns
            is_first = key not in seen_keys
            seen_keys.add(key)
            if not is_first:
                n_merged += 1
            elif key in known_keys or (is_own and is_stored):
                n_known += 1
            elif is_stored and vote["voted_at"] is not None:
                conflicts.append((row, STORED_DIFFERENTLY))
            else:
                new.append((row.line, vote | {"idempotency_key": key}))
                turn = vote["comparison_id"], vote["choice"], vote["voted_at"]
                self.n_repeating += turn in turns_of_all
        self._stage_votes(new)
        self.rejects.add_all(conflicts)
        refusals += conflicts
        self.counts = self.counts.plus(known=n_known, merged=n_merged, rejected=len(refusals))

    def _stage_votes(self, new: Sequence[tuple[int, dict[str, Any]]]) -> None:
        self.staging.add(new)
        dated = [vote["voted_at"] for _, vote in new if vote["voted_at"] is not None]
        self.n_undated += len(new) - len(dated)
        self.days |= {day.isoformat() for day in {moment.date() for moment in dated}}

    def _match_comparisons(
        self,
        read: Sequence[ParsedRow],
        refusals: list[RefusedRow],
    ) -> list[ParsedRow]:
        """The votes whose comparison is stored, with its id; adds the others to `refusals`."""
        stored = self.stored.find_pair_keys(
            [vote["comparison_id"] for _, vote, _ in read if vote["comparison_id"]]
        )
        by_source_id = self.comparisons.with_source_ids(
            [vote["source_pair_id"] for _, vote, _ in read if vote["source_pair_id"]]
        )
        matches = []
        for row, vote, is_own in read:
            own_id, source_id = vote["comparison_id"], vote.pop("source_pair_id")
            comparison = own_id if own_id in stored else by_source_id.get(source_id)
            if comparison is None:
                reason = (
                    f"source_pair_id {source_id!r} is not a comparison of this project. Import its "
                    "comparisons first"
                )
                if own_id:
                    reason = (
                        f"comparison_id {own_id!r} is not an id that this project gave. Import "
                        "comparisons and votes with ids of your own as source_pair_id"
                    )
                refusals.append((row, reason))
            else:
                matches.append((row, vote | {"comparison_id": comparison}, is_own))
        return matches

    def _build_vote(
        self, cells: Mapping[str, Any], line: int, is_own: bool, *, words: Mapping[str, Choice]
    ) -> dict[str, Any]:
        """Fields of a NewVote without idempotency key, with comparison_id or source_pair_id. Raises
        RowRejected.
        """
        if is_own and cells.get("is_superseded") in (True, "true"):
            raise RowRejected(
                "a later vote of the annotator supersedes it. Export without --superseded"
            )
        comparison_id = parse_optional_identifier(cells.get("comparison_id"), "comparison_id")
        source_id = parse_optional_identifier(cells.get("source_pair_id"), "source_pair_id")
        if comparison_id is None and source_id is None:
            raise RowRejected("comparison_id and source_pair_id are both missing")
        annotator = parse_identifier(cells["annotator_id"], "annotator_id")
        choice = parse_choice(cells["choice"], words)
        kind_cell = cells.get("annotator_kind")
        kind = (
            AnnotatorKind.HUMAN
            if is_missing(kind_cell)
            else parse_enum(kind_cell, "annotator_kind", AnnotatorKind)
        )
        # names of models need no pseudonym
        is_kept = is_own or self.pseudonyms is None or kind == AnnotatorKind.MACHINE
        if not is_kept and self.pseudonyms is not None:
            annotator = self.pseudonyms(annotator)
        self._place_in_group(annotator, cells.get("annotator_group"))
        return {
            "comparison_id": comparison_id,
            "source_pair_id": source_id,
            "annotator_id": annotator,
            "annotator_kind": kind.value,
            "choice": choice.value,
            "strength": _parse_strength(cells.get("strength"), choice),
            "voted_at": self.clock.parse(cells.get("voted_at"), "voted_at"),
            "duration_s": parse_number(cells.get("duration_s"), "duration_s", low=0),
            "reason": ""
            if is_own and cells.get("reason") == ""
            else parse_optional_text(cells.get("reason"), "reason"),
            "stated_confidence": parse_number(
                cells.get("stated_confidence"), "stated_confidence", low=0, high=1
            ),
            "task_id": parse_optional_identifier(cells.get("task_id"), "task_id"),
            "is_blind": parse_optional_flag(cells.get("is_blind"), "is_blind"),
        }

    def _place_in_group(self, annotator: str, cell: Any) -> None:
        group = parse_optional_identifier(cell, "annotator_group")
        if group is None:
            return
        earlier_group = self.groups.setdefault(annotator, group)
        if earlier_group != group:
            raise RowRejected(
                f"annotator_group {group!r}, but an earlier row places the annotator in "
                f"{earlier_group!r}"
            )


def import_keys(votes: Sequence[Mapping[str, Any]]) -> list[str]:
    """The idempotency keys of imported votes: equal rows of any files are one vote."""
    return [f"import:{content_id(*(vote[name] for name in IDENTITY))}" for vote in votes]


def _parse_strength(value: Any, choice: Choice) -> int | None:
    """Strength 1 to 4 with choice a or b. Strength 0 on a tie is read as none."""
    strength = parse_integer(value, "strength", low=0, high=MAX_STRENGTH)
    if strength is not None and strength > 0 and choice not in (Choice.A, Choice.B):
        raise RowRejected(f"strength {strength} with choice {choice}; strength needs choice a or b")
    if strength == 0 and choice in (Choice.A, Choice.B):
        raise RowRejected(
            f"strength 0 with choice {choice}; expected 1 (slight) to {MAX_STRENGTH} (strong)"
        )
    return strength or None

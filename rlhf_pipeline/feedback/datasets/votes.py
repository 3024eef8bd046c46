"""Imports the rows of a file as votes of this project, in order of time."""

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import timedelta
from functools import partial
from typing import Any, Protocol

from rlhf_pipeline.core.conversations import normalise_text
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
    parse_text,
)
from rlhf_pipeline.feedback.datasets.comparisons import (
    ComparisonImport,
    ComparisonStore,
    StoredRows,
)
from rlhf_pipeline.feedback.datasets.mapping import Binding, bind
from rlhf_pipeline.feedback.datasets.preference import ExportedRows, ParsedRow, RefusedRow
from rlhf_pipeline.feedback.datasets.pseudonyms import Pseudonyms
from rlhf_pipeline.feedback.datasets.rejects import ImportCounts, Rejects
from rlhf_pipeline.feedback.datasets.staging import StagedVotes

REQUIRED = [("comparison_id", "source_pair_id"), ("annotator_id",), ("choice",)]
MAX_STRENGTH = 4
DOUBLED = timedelta(seconds=5)  # as in store.casting
SHOWN = 50  # votes that a preview may show
TEXTS = ("prompt", "completion_a", "completion_b")
STORED_DIFFERENTLY = (
    "a vote of this annotator with the same time and choice is stored with another strength, "
    "duration, reason or task. Votes cannot be changed: import the file with the same mapping as "
    "before"
)
SWAPPED = {"a": "b", "b": "a"}
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


class CastOutcome(Protocol):
    """How many votes were new, and how many the store held already."""

    @property
    def n_new(self) -> int: ...
    @property
    def n_known(self) -> int: ...


class VoteWriter(Protocol):
    """The part of `store.votes` that records votes."""

    def cast_all(self, new_votes: Iterable[NewVote]) -> CastOutcome: ...


@dataclass
class VoteImport:
    """Imports one file of votes: `read` puts new votes into `staging`, `record` casts them by time,
    undated ones last.

    Nothing is recorded before the whole file is read, so a truncated file imports nothing. Votes
    beside their texts find their comparison by these first, whichever side they have there.
    """

    comparisons: ComparisonStore
    stored: StoredRows
    rejects: Rejects
    staging: StagedVotes
    clock: MomentParser
    pseudonyms: Pseudonyms | None  # None keeps annotator ids unchanged
    counts: ImportCounts = field(default_factory=ImportCounts)
    days: set[str] = field(default_factory=set)  # days of new votes with a time
    n_undated: int = 0
    # new votes that repeat choice and time of another annotator's stored vote on the comparison
    n_repeating: int = 0
    groups: dict[str, str | None] = field(default_factory=dict)  # by annotator, as the file has it
    pair_key: Callable[[str, str, str], str] | None = None  # None: rows have no texts
    n_untaught: int = 0  # new votes on comparisons that are flagged, which give no training pair
    n_replaced: int = 0  # new votes on a pair that the same annotator judged before in the file
    n_doubled: int = 0  # votes that repeat an equal one within seconds
    _judged: set[int] = field(default_factory=set)
    sides: Counter[str] = field(default_factory=Counter)  # choices of all rows that have one
    taken: Counter[str] = field(default_factory=Counter)  # choices of the rows that are votes
    unread: Counter[str] = field(default_factory=Counter)  # words that are no choice
    shown: list[dict[str, Any]] = field(default_factory=list)  # the first new votes
    # comparisons that were stored just now, which have no votes: by id, kept up to date
    fresh: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)

    def read(
        self,
        rows: RowFile,
        names: mapping.ColumnMapping,
        what: str,
        progress: Progress = ignore_progress,
        batches: Iterable[Sequence[FileRow]] | None = None,
    ) -> None:
        """Read all rows of the file, by default in batches of our own: stage new votes, count the
        others. Raises DatasetError.
        """
        own = ExportedRows("vote", rows)
        texts: mapping.Names = dict.fromkeys(TEXTS, ()) if self.pair_key is not None else {}
        binding = bind(
            mapping.VOTES | (mapping.OWN_VOTES if own else {}) | texts,
            names,
            rows.columns,
            what=what,
            required=REQUIRED,
        )
        seen_keys: set[str] = set()
        for batch in chunks(rows) if batches is None else batches:
            self._stage(batch, names.choices, binding, own, seen_keys)
            progress(rows.position, rows.size, "reading")
        self._refuse_one_side(what)

    def read_beside(
        self,
        comparisons: ComparisonImport,
        batches: Iterable[Sequence[FileRow]],
        rows: RowFile,
        names: mapping.ColumnMapping,
        what: str,
    ) -> None:
        """`read` batches of votes, each on the pairs that `comparisons` stored last."""
        self.fresh, self.pair_key = comparisons.fresh, comparisons.find_key
        self.read(rows, names, what, batches=batches)

    def record(self, votes: VoteWriter, progress: Progress = ignore_progress) -> None:
        """Record the staged votes. After an error or a kill, import the same file again: only
        missing votes are cast.
        """
        for batch in self.new_votes():
            done = votes.cast_all(NewVote(origin="import", **vote) for vote in batch)
            self.n_doubled += done.n_known
            self.counts = self.counts.plus(imported=done.n_new, merged=done.n_known)
            progress(self.counts.imported + self.n_doubled, len(self.staging), "casting")

    def new_votes(self) -> Iterator[list[dict[str, Any]]]:
        """Batches of the staged votes, by time, without those that were sent twice: the store would
        take them for the earlier one.
        """
        recent: dict[tuple[str, str], dict[str, Any]] = {}
        for batch in self.staging:
            single = []
            for vote in batch:
                judge = vote["comparison_id"], vote["annotator_id"]
                if _is_doubled(recent.get(judge), vote):
                    self.n_doubled += 1
                    self.counts = self.counts.plus(merged=1)
                else:
                    recent[judge] = vote
                    single.append(vote)
            last = batch[-1]["voted_at"]
            recent = {
                j: v
                for j, v in recent.items()
                if v["voted_at"] and last and last - v["voted_at"] <= DOUBLED
            }
            yield single

    def _refuse_one_side(self, what: str) -> None:
        """Raises DatasetError where votes for a or b are taken, and those for the other side are
        all refused.
        """
        for side in SWAPPED:
            n_others = self.taken.total()
            if self.taken[side] or not n_others:
                continue
            words = ", ".join(repr(word) for word, _ in self.unread.most_common(3))
            if self.sides[side]:
                lost = f"all {self.sides[side]:,} votes for {side} are rejected"
            elif self.unread:
                lost = f"no vote for {side} is left, and {words} cannot be read as a choice"
            else:
                continue
            reason = next(iter(self.rejects.reasons), "")
            raise DatasetError(
                f"{what}: {lost}, while {n_others:,} others would be stored. No vote was. "
                f"First reason: {reason}. Correct that, or name words with --choice."
            )

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
        older = {
            key: vote["comparison_id"]
            for key, (_, vote, _) in zip(keys, matches, strict=True)
            if vote["comparison_id"] not in self.fresh
        }
        known_keys = self.stored.find_known_keys([*older])
        turns = self.stored.find_votes([older[key] for key in older.keys() - known_keys])
        turns_of_all = {(comparison, choice, at) for comparison, _, choice, at in turns if at}
        n_merged = n_known = 0
        new: list[tuple[int, dict[str, Any]]] = []
        conflicts: list[RefusedRow] = []
        for key, (row, vote, is_own) in zip(keys, matches, strict=True):
            is_flagged = vote.pop("is_flagged")
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
                self.n_untaught += is_flagged
                judge = hash((vote["comparison_id"], vote["annotator_id"]))
                self.n_replaced += judge in self._judged
                self._judged.add(judge)
                new.append((row.line, vote | {"idempotency_key": key}))
                turn = vote["comparison_id"], vote["choice"], vote["voted_at"]
                self.n_repeating += turn in turns_of_all
        self._stage_votes(new)
        self.rejects.add_all(conflicts)
        refusals += conflicts
        self.counts = self.counts.plus(
            stored_before=n_known, merged=n_merged, rejected=len(refusals)
        )

    def _stage_votes(self, new: Sequence[tuple[int, dict[str, Any]]]) -> None:
        self.staging.add(new)
        self.shown += [vote for _, vote in new[: SHOWN - len(self.shown)]]
        dated = [vote["voted_at"] for _, vote in new if vote["voted_at"] is not None]
        self.n_undated += len(new) - len(dated)
        self.days |= {day.isoformat() for day in {moment.date() for moment in dated}}

    def _match_comparisons(
        self,
        read: Sequence[ParsedRow],
        refusals: list[RefusedRow],
    ) -> list[ParsedRow]:
        """The votes whose comparison is stored, with its id and whether it is flagged; adds the
        others to `refusals`.
        """
        votes = [vote for _, vote, _ in read]
        by_source_id = self.comparisons.with_source_ids(
            [vote["source_pair_id"] for vote in votes if vote["source_pair_id"]]
        )
        by_texts = {
            row["pair_key"]: comparison
            for comparison, row in self.fresh.items()
            if row["flag"] is None and row["repeat_of"] is None
        }
        keys = {vote["pair_key"] for vote in votes} - by_texts.keys() - {None}
        by_texts |= self.comparisons.with_pair_keys([*keys]) if keys else {}
        ids = {vote["comparison_id"] for vote in votes if vote["comparison_id"]}
        ids |= {*by_source_id.values(), *by_texts.values()}
        known = {i: self.fresh[i] for i in ids if i in self.fresh} | self.stored.find_fields(
            [*ids - self.fresh.keys()], ("flag", "completion_a", "pair_key")
        )
        matches = []
        for row, vote, is_own in read:
            own_id, source_id = vote["comparison_id"], vote.pop("source_pair_id")
            key, first = vote.pop("pair_key"), vote.pop("first")
            comparison = own_id if own_id in known else None
            comparison = comparison or by_texts.get(key) or by_source_id.get(source_id)
            if key and comparison is not None and known[comparison]["pair_key"] != key:
                comparison = None  # the id is that of a pair with other texts
            if comparison is None:
                refusals.append((row, _explain_missing(own_id, source_id, key)))
                continue
            self.taken[vote["choice"]] += 1
            stored = known[comparison]
            if first is not None and normalise_text(stored["completion_a"]) != first:
                vote["choice"] = SWAPPED.get(vote["choice"], vote["choice"])
            match = {"comparison_id": comparison, "is_flagged": stored["flag"] is not None}
            matches.append((row, vote | match, is_own))
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
        if comparison_id is None and source_id is None and cells.get("prompt") is None:
            raise RowRejected("comparison_id and source_pair_id are both missing")
        annotator = parse_identifier(cells["annotator_id"], "annotator_id")
        choice = self._parse_choice(cells["choice"], words)
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
            **self._parse_texts(cells),
        }

    def _parse_choice(self, cell: Any, words: Mapping[str, Choice]) -> Choice:
        try:
            choice = parse_choice(cell, words)
        except RowRejected:
            self.unread[str(cell)[:40]] += 1
            raise
        self.sides[choice.value] += 1
        return choice

    def _parse_texts(self, cells: Mapping[str, Any]) -> dict[str, Any]:
        """The key of a row's texts, and the text of a which distinguishes its sides."""
        if self.pair_key is None or cells.get("prompt") is None:
            return {"pair_key": None, "first": None}
        prompt, a, b = (parse_text(cells[name], name, may_be_empty=True) for name in TEXTS)
        return {"pair_key": self.pair_key(prompt, a, b), "first": normalise_text(a)}

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


def _is_doubled(earlier: Mapping[str, Any] | None, vote: Mapping[str, Any]) -> bool:
    return (
        earlier is not None
        and _is_recent(earlier, vote)
        and all(vote[name] == earlier[name] for name in ("choice", "strength", "reason"))
    )


def _is_recent(earlier: Mapping[str, Any], vote: Mapping[str, Any]) -> bool:
    times = earlier["voted_at"], vote["voted_at"]
    return None not in times and times[1] - times[0] <= DOUBLED


def _explain_missing(own_id: str | None, source_id: str | None, key: str | None) -> str:
    if own_id:
        return (
            f"comparison_id {own_id!r} is not an id that this project gave. Import comparisons and "
            "votes with ids of your own as source_pair_id"
        )
    if key:
        return "the pair of the row was rejected, or both its completions have the same text"
    return (
        f"source_pair_id {source_id!r} is not a comparison of this project. Import its comparisons "
        "first, or a file that has their texts too"
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

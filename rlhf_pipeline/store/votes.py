"""Casts votes, and reads the log of all votes that sensors, assets and exports use."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterable, Iterator, Mapping, Sequence
from concurrent.futures import Future
from datetime import date, datetime
from typing import TYPE_CHECKING, Any

from sqlalchemy import ColumnElement, Row, Select, and_, func, literal, null, select

from rlhf_pipeline.errors import InvalidVote, NotFound, PipelineError, StoreError
from rlhf_pipeline.frames import JUDGEMENTS, VOTES, FrameSchema, check_frame
from rlhf_pipeline.records import (
    AnnotatorKind,
    Choice,
    NewVote,
    Record,
    Vote,
    VoteDetails,
    content_hash,
)
from rlhf_pipeline.store.audit import audited_transaction
from rlhf_pipeline.store.casting import (
    REFUSALS,
    VOTES_PER_TRANSACTION,
    VoteRow,
    cast_votes,
    check_vote,
    prepare_row,
    vote_of,
)
from rlhf_pipeline.store.conversion import batches, frame_of
from rlhf_pipeline.store.counting import (
    LATEST,
    NOBODY,
    is_counting,
    is_standing,
    is_teaching,
)
from rlhf_pipeline.store.engine import MAX_ROWS, Database
from rlhf_pipeline.store.schema import comparisons, votes
from rlhf_pipeline.store.vote_lists import VoteLists, is_on_comparison

if TYPE_CHECKING:
    import pandas as pd

ROWS_AT_ONCE = 50_000  # rows as Python objects take ten times what they take in a frame


class TouchedDay(Record):
    """A day with `n_new` votes, the last of them `max_seq`, received at `last_received_at`."""

    day: date
    n_new: int
    max_seq: int
    last_received_at: datetime


class CastCount(Record):
    """Number of new votes, and of those recorded before under the same key."""

    n_new: int
    n_known: int


class DayDigest(Record):
    """The `n` votes of a day up to a seq, and a hash of them."""

    day: date
    up_to_seq: int
    n: int
    sha256: str


class Votes(VoteLists):
    """Append-only. `seq` counts a project's votes in commit order, without gaps."""

    def __init__(self, database: Database):
        super().__init__(database)
        # of the threads of this process: those that wait for the turn, and the one that has it
        self._waiting: list[tuple[VoteRow, Future[VoteRow]]] = []
        self._turn = threading.Lock()

    def cast(self, vote: NewVote) -> Vote:
        """Record one vote with its audit link, in one transaction with the votes of other threads
        that wait at that moment: a commit waits milliseconds for the disk.

        The same idempotency key with the same body returns the stored vote. Raises
        UnknownComparison; InvalidVote (time without zone, strength without a or b, superseding
        anything but the annotator's own standing vote on the comparison); IdempotencyConflict (same
        key, another body). A second vote of an annotator on a comparison that supersedes nothing is
        a repeat pass: kept, and the last pass counts.

        Where the database does not answer, raises StoreError after the busy timeout and records
        nothing; after twice that time if the vote is being recorded by then.
        """
        mine: Future[VoteRow] = Future()
        self._waiting.append((prepare_row(vote), mine))
        timeout_s = self._database.busy_timeout_s
        if self._turn.acquire(timeout=timeout_s):
            try:
                if not mine.done():
                    self._record_waiting()
            finally:
                self._turn.release()
        elif mine.cancel():
            raise StoreError(
                f"The store {self._database.where}: it does not answer. The vote was not "
                "recorded; send it again once it does."
            )
        try:
            return vote_of(mine.result(timeout_s))
        except TimeoutError as cause:
            raise StoreError(
                f"The store {self._database.where}: it does not answer. Whether the vote was "
                "recorded is not known; send it again under the same idempotency key."
            ) from cause

    def _record_waiting(self) -> None:
        """Record the waiting votes but those that were withdrawn, and resolve their futures,
        whatever happens: a thread whose future stays open would wait for nothing.
        """
        n = len(self._waiting)  # more may come meanwhile
        group = [one for one in self._waiting[:n] if one[1].set_running_or_notify_cancel()]
        del self._waiting[:n]
        answers: Sequence[VoteRow | BaseException]
        try:
            answers = self._record_each([row for row, _ in group])
        except BaseException as error:  # noqa: BLE001 (raised by each of the waiting threads)
            answers = [error] * len(group)
        for (_, future), answer in zip(group, answers, strict=True):
            if isinstance(answer, BaseException):
                future.set_exception(answer)
            else:
                future.set_result(answer)

    def cast_each(self, new_votes: Sequence[NewVote]) -> list[Vote | PipelineError]:
        """`cast` for several votes, each with its own result: the stored vote, or why it was
        refused. One transaction if none is refused.
        """
        answers: list[Vote | PipelineError | None] = [None] * len(new_votes)
        prepared: list[tuple[int, VoteRow]] = []
        for i, vote in enumerate(new_votes):
            try:
                prepared.append((i, prepare_row(vote)))
            except InvalidVote as refusal:
                answers[i] = refusal
        rows = self._record_each([one for _, one in prepared])
        for (i, _), row in zip(prepared, rows, strict=True):
            answers[i] = row if isinstance(row, PipelineError) else vote_of(row)
        return [answer for answer in answers if answer is not None]

    def _record_each(self, prepared: Sequence[VoteRow]) -> list[VoteRow | PipelineError]:
        """Each vote as stored, or why it was refused."""
        if not prepared:
            return []
        try:
            return list(self._record(prepared)[0])
        except REFUSALS as refusal:
            if len(prepared) == 1:
                return [refusal]
        return [self._record_each([one])[0] for one in prepared]

    def cast_many(self, new_votes: Sequence[NewVote]) -> list[Vote]:
        """`cast` for many, in order, some hundred to a transaction; after an error or a kill, cast
        them all again.

        Invalid votes are refused before the first is written; one that the store refuses keeps its
        transaction and all later ones from being written.
        """
        for vote in new_votes:
            check_vote(vote)
        return [vote_of(row) for rows, _ in self._cast(new_votes) for row in rows]

    def cast_all(self, new_votes: Iterable[NewVote]) -> CastCount:
        """`cast_many` for a stream of any length: each vote is checked as it comes, none is
        returned.
        """
        n, n_new = 0, 0
        for rows, new in self._cast(new_votes):
            n, n_new = n + len(rows), n_new + new
        return CastCount(n_new=n_new, n_known=n - n_new)

    def _cast(self, new_votes: Iterable[NewVote]) -> Iterator[tuple[list[VoteRow], int]]:
        """The votes of each transaction as stored, and how many of them are new."""
        for batch in self._database.with_backoff(batches(new_votes, VOTES_PER_TRANSACTION)):
            yield self._record([prepare_row(vote) for vote in batch])

    def _record(self, prepared: Sequence[VoteRow]) -> tuple[list[VoteRow], int]:
        """One transaction: the votes as stored, and how many of them are new."""
        with audited_transaction(self._database) as (connection, ledger):
            before = ledger.vote_seq
            rows = cast_votes(connection, ledger, self._database, prepared)
        return rows, ledger.vote_seq - before

    def get(self, vote_id: str) -> Vote:
        """Raises NotFound."""
        vote = self.find(vote_id)
        if vote is None:
            raise NotFound(f"There is no vote {vote_id!r}. Correct the id.")
        return vote

    def find(self, vote_id: str) -> Vote | None:
        return self._find_one(votes.c.vote_id == vote_id)

    def with_key(self, idempotency_key: str) -> Vote | None:
        """The vote that was cast under a key."""
        return self._find_one(votes.c.idempotency_key == idempotency_key)

    def _find_one(self, condition: ColumnElement[bool]) -> Vote | None:
        wanted = select(votes).where(condition)
        return next(map(vote_of, self._database.fetch_mappings(wanted)), None)

    def log(
        self,
        days: Sequence[str] | None = None,
        *,
        comparison_ids: Sequence[str] | None = None,
        after_seq: int = 0,
        up_to_seq: int | None = None,
        schema: FrameSchema = VOTES,
    ) -> pd.DataFrame:
        """VOTES as cast, in seq order: superseded ones, earlier passes, skips and machines' too.

        Of all days or of `days`, on all comparisons or on these, above `after_seq` and not above
        `up_to_seq` (default: now). `votes.counting` selects those that stand or count. The same
        arguments always give the same frame. `schema`: VOTES, or EXPORTED_VOTES with the reason
        and, as of `up_to_seq`, whether the vote stands and counts.
        """
        import pandas as pd

        frames = list(
            self.iter_log(
                days,
                comparison_ids=comparison_ids,
                after_seq=after_seq,
                up_to_seq=up_to_seq,
                schema=schema,
            )
        )
        if not frames:
            return schema.empty_frame()
        together = pd.concat(frames, ignore_index=True) if len(frames) > 1 else frames[0]
        return together.sort_values("seq", ignore_index=True)

    def iter_log(
        self,
        days: Sequence[str] | None = None,
        *,
        comparison_ids: Sequence[str] | None = None,
        after_seq: int = 0,
        up_to_seq: int | None = None,
        schema: FrameSchema = VOTES,
        batch_rows: int = ROWS_AT_ONCE,
    ) -> Iterator[pd.DataFrame]:
        """`log` in frames of at most `batch_rows`, in seq order if neither days nor ids are given.

        Each frame is read in a transaction of its own, so a slow reader blocks no writer; votes
        cast meanwhile are left out.
        """
        limit = self.max_seq() if up_to_seq is None else up_to_seq
        wanted = self._select_log(schema, limit).order_by(votes.c.seq).limit(batch_rows)
        for which in _iter_conditions(days, comparison_ids):
            after = after_seq
            while after < limit:
                some = wanted.where(*which, votes.c.seq > after, votes.c.seq <= limit)
                rows = self._database.fetch_all(some)
                if rows:
                    yield _votes_frame(rows, schema)
                after = rows[-1].seq if len(rows) == batch_rows else limit

    def judgements(self, comparison_ids: Iterable[str]) -> pd.DataFrame:
        """JUDGEMENTS on these comparisons: those of their log, by the rule of `votes.consensus`."""
        # `counts` is a column: in WHERE it makes Postgres scan all votes.
        wanted = (
            self._select_log(JUDGEMENTS, LATEST)
            .add_columns(is_counting(LATEST).label("counts"))
            .where(
                votes.c.annotator_kind != AnnotatorKind.MACHINE.value,
                votes.c.choice != Choice.SKIP.value,
                comparisons.c.repeat_of.is_(None),
            )
        )
        rows = self._database.fetch_among(wanted, votes.c.comparison_id, comparison_ids)
        return frame_of([row[:-1] for row in rows if row.counts], JUDGEMENTS)

    def _select_log(self, schema: FrameSchema, limit: int) -> Select[Any]:
        """The schema's columns as they were when `limit` was the newest seq."""
        computed = {
            **{name: comparisons.c[name] for name in ("prompt_id", "repeat_of", "source_pair_id")},
            "is_superseded": ~is_standing(votes, up_to_seq=limit),
            "is_counting": is_counting(limit),
            # both are in one JSON text, which `_votes_frame` takes apart
            "dimensions": votes.c.details,
            "highlights": null(),
        }
        columns = [
            (computed[name] if name in computed else votes.c[name]).label(name)
            for name in schema.columns
        ]
        return select(*columns).join(comparisons, is_on_comparison())

    def touched_days(self, after_seq: int = 0) -> list[TouchedDay]:
        """Days on which votes with a seq above `after_seq` were cast, oldest first."""
        by_day = (
            select(
                votes.c.day,
                func.count().label("n_new"),
                func.max(votes.c.seq).label("max_seq"),
                func.max(votes.c.received_at).label("last_received_at"),
            )
            .where(votes.c.seq > after_seq)
            .group_by(votes.c.day)
            .order_by(votes.c.day)
        )
        rows = self._database.fetch_mappings(by_day)
        return [TouchedDay.model_validate(dict(row)) for row in rows]

    def last_imported_seq(self, day: str) -> int:
        """The newest seq among the imported votes that were cast on `day`, undated ones excluded; 0
        if there is none.
        """
        newest = select(func.max(votes.c.seq)).where(self._is_imported(), votes.c.day == day)
        return self._database.fetch_scalar(newest) or 0

    def first_imported_seq(self, days: Sequence[str]) -> int | None:
        """The oldest seq among the imported votes that were cast on `days`; None if there
        is none.
        """
        oldest = select(func.min(votes.c.seq)).where(self._is_imported()).group_by(votes.c.day)
        return min(
            (row[0] for row in self._database.fetch_among(oldest, votes.c.day, days)), default=None
        )

    def _is_imported(self) -> ColumnElement[bool]:
        return and_(
            votes.c.origin == "import",
            votes.c.voted_at.is_not(None),
        )

    def count(self) -> int:
        """All votes ever cast, superseded ones included: seqs have no gaps."""
        return self.max_seq()

    def annotator_kinds(self) -> set[AnnotatorKind]:
        """Kinds of annotators with any vote, superseded ones included."""
        kinds = select(votes.c.annotator_kind).distinct()
        return {AnnotatorKind(kind) for kind in self._database.fetch_scalars(kinds)}

    def n_voted_comparisons(
        self,
        after_seq: int = 0,
        *,
        up_to_seq: int | None = None,
        split: str | None = None,
        quarantined: Mapping[str, int] = NOBODY,
    ) -> int:
        """Number of comparisons with a vote above `after_seq` and not above `up_to_seq` that
        teaches (see `votes.teaching`). With `split`, only comparisons that were imported with it.
        """
        newest = self.max_seq()
        teaches = [votes.c.seq > after_seq, is_teaching(up_to_seq, quarantined)]
        mine = [] if split is None else [comparisons.c.split == split]
        # Few votes: their comparisons. A large part of all: each comparison's first vote, a fifth
        # of the work at five votes each.
        if min(up_to_seq or newest, newest) - after_seq > newest / 4:
            has_vote = select(literal(1)).select_from(votes).where(is_on_comparison(), *teaches)
            counted = select(func.count()).select_from(comparisons).where(*mine, has_vote.exists())
        else:
            counted = (
                select(func.count(votes.c.comparison_id.distinct()))
                .join(comparisons, is_on_comparison())
                .where(*mine, *teaches)
            )
        return self._database.fetch_scalar(counted) or 0

    def day_digest(self, day: str, up_to_seq: int | None = None) -> DayDigest:
        """Number of votes of `day` up to a seq and a hash over them; equal hashes mean
        equal logs.
        """
        up_to = self.max_seq() if up_to_seq is None else up_to_seq
        ids = (
            select(votes.c.vote_id)
            .where(votes.c.day == day, votes.c.seq <= up_to)
            .order_by(votes.c.seq)
        )
        cast = list(self._database.fetch_scalars(ids))
        return DayDigest(
            day=date.fromisoformat(day),
            up_to_seq=up_to,
            n=len(cast),
            sha256=content_hash(cast),
        )


def _iter_conditions(
    days: Sequence[str] | None, comparison_ids: Sequence[str] | None
) -> Iterator[list[ColumnElement[bool]]]:
    """Conditions for as many values at once as a database takes."""
    for some_days in _in_batches(days):
        for ids in _in_batches(comparison_ids):
            yield [
                column.in_(values)
                for column, values in ((votes.c.day, some_days), (votes.c.comparison_id, ids))
                if values is not None
            ]


def _in_batches(values: Sequence[str] | None) -> Iterator[list[str] | None]:
    """`values` sorted, each once, in batches that a database takes; None alone for None."""
    if values is None:
        yield None
    else:
        yield from batches(sorted(set(values)), MAX_ROWS)


def _votes_frame(rows: Sequence[Row[Any]], schema: FrameSchema) -> pd.DataFrame:
    """Rows in the order of the schema's columns, `dimensions` holding the stored details."""
    import pandas as pd

    if not rows:
        return schema.empty_frame()
    frame = pd.DataFrame.from_records([tuple(row) for row in rows], columns=list(schema.columns))
    details = frame["dimensions"].dropna().map(VoteDetails.from_json)
    for name in ("dimensions", "highlights"):
        texts = details.map(lambda one, name=name: _json_or_none(one, name))
        frame[name] = texts.reindex(frame.index).astype(object)
    return check_frame(frame, schema)


def _json_or_none(details: VoteDetails, name: str) -> str | None:
    value = details.model_dump(mode="json")[name]
    return json.dumps(value, ensure_ascii=False) if value else None

"""Reads the log of all votes, which sensors, assets and exports use."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from datetime import date, datetime
from typing import TYPE_CHECKING, Any

from sqlalchemy import ColumnElement, Row, Select, and_, func, literal, null, select

from rlhf_pipeline.core.frames import JUDGEMENTS, VOTES, FrameSchema, check_frame
from rlhf_pipeline.core.records import AnnotatorKind, Choice, Record, VoteDetails, content_hash
from rlhf_pipeline.store.conversion import batches, frame_of
from rlhf_pipeline.store.counting import (
    LATEST,
    NO_QUARANTINE,
    is_counting,
    is_standing,
    is_teaching,
)
from rlhf_pipeline.store.engine import MAX_ROWS
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


class DayDigest(Record):
    """The `n` votes of a day up to a seq, and a hash of them."""

    day: date
    up_to_seq: int
    n: int
    sha256: str


class VoteLog(VoteLists):
    """All votes as cast, superseded ones included, up to a seq."""

    def log(
        self,
        days: Sequence[str] | None = None,
        *,
        comparison_ids: Sequence[str] | None = None,
        annotator_id: str | None = None,
        up_to_seq: int | None = None,
        schema: FrameSchema = VOTES,
    ) -> pd.DataFrame:
        """VOTES as cast, in seq order: superseded ones, earlier passes, skips and machines' too.

        Of all days or of `days`, on all comparisons or on these, of all annotators or of one, not
        above `up_to_seq` (default: now). `votes.counting` selects those that stand or count. The
        same arguments always give the same frame. `schema`: VOTES, or EXPORTED_VOTES with the
        reason and, as of `up_to_seq`, whether the vote stands and counts.
        """
        import pandas as pd

        limit = self.max_seq() if up_to_seq is None else up_to_seq
        theirs = [] if annotator_id is None else [votes.c.annotator_id == annotator_id]
        frames = [
            frame
            for conditions in _iter_conditions(days, comparison_ids)
            for frame in self._iter_frames(schema, limit, ROWS_AT_ONCE, [*conditions, *theirs])
        ]
        if not frames:
            return schema.empty_frame()
        together = pd.concat(frames, ignore_index=True) if len(frames) > 1 else frames[0]
        return together.sort_values("seq", ignore_index=True)

    def iter_log(self, schema: FrameSchema, batch_rows: int) -> Iterator[pd.DataFrame]:
        """`log` of all votes in frames of at most `batch_rows`, in seq order.

        Each frame is read in a transaction of its own, so a slow reader blocks no writer; votes
        cast meanwhile are left out.
        """
        return self._iter_frames(schema, self.max_seq(), batch_rows, [])

    def _iter_frames(
        self,
        schema: FrameSchema,
        limit: int,
        batch_rows: int,
        conditions: Sequence[ColumnElement[bool]],
    ) -> Iterator[pd.DataFrame]:
        query = self._select_log(schema, limit).order_by(votes.c.seq).limit(batch_rows)
        after = 0
        while after < limit:
            some = query.where(*conditions, votes.c.seq > after, votes.c.seq <= limit)
            rows = self._database.fetch_all(some)
            if rows:
                yield _votes_frame(rows, schema)
            after = rows[-1].seq if len(rows) == batch_rows else limit

    def judgements(self, comparison_ids: Iterable[str]) -> pd.DataFrame:
        """JUDGEMENTS on these comparisons: those of their log, by the rule of `votes.consensus`."""
        # `counts` is a column: in WHERE it makes Postgres scan all votes.
        query = (
            self._select_log(JUDGEMENTS, LATEST)
            .add_columns(is_counting(LATEST).label("counts"))
            .where(
                votes.c.annotator_kind != AnnotatorKind.MACHINE.value,
                votes.c.choice != Choice.SKIP.value,
                comparisons.c.repeat_of.is_(None),
            )
        )
        rows = self._database.fetch_among(query, votes.c.comparison_id, comparison_ids)
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
        quarantined: Mapping[str, int] = NO_QUARANTINE,
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

    def count_teaching(
        self, annotator_id: str, from_seq: int, quarantined: Mapping[str, int] = NO_QUARANTINE
    ) -> tuple[int, int]:
        """Number of an annotator's votes from a seq on that teach, and of their comparisons."""
        counted: Any = (
            select(func.count(), func.count(votes.c.comparison_id.distinct()))
            .select_from(votes)
            .join(comparisons, is_on_comparison())
            .where(
                votes.c.annotator_id == annotator_id,
                votes.c.seq >= from_seq,
                is_teaching(None, quarantined),
            )
        )
        n_votes, n_comparisons = self._database.fetch_all(counted)[0]
        return n_votes, n_comparisons

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
        texts = details.map(lambda detail, name=name: _json_or_none(detail, name))
        frame[name] = texts.reindex(frame.index).astype(object)
    return check_frame(frame, schema)


def _json_or_none(details: VoteDetails, name: str) -> str | None:
    value = details.model_dump(mode="json")[name]
    return json.dumps(value, ensure_ascii=False) if value else None

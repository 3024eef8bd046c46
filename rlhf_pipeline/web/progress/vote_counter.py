"""Counts votes incrementally: only votes after the last count are read."""

import threading
from collections import deque
from collections.abc import Collection
from dataclasses import dataclass, field
from datetime import date, datetime

from rlhf_pipeline.records import AnnotatorKind, Choice
from rlhf_pipeline.store import RemainingWork, Store
from rlhf_pipeline.store.vote_lists import VoteTally
from rlhf_pipeline.web.me.statistics import AnnotatorStatistics
from rlhf_pipeline.web.memory_cache import CachedValue, CacheTimes, ReaderCounts

PACE_OF = 200  # newest votes of an annotator used for the median time
PACE_WITHIN = 20_000  # newest votes of all annotators that are searched for these at the start


@dataclass
class VoteCounts:
    """Votes up to `seq` by annotator and day. Votes by machines are counted separately."""

    seq: int = 0
    n_votes: int = 0
    n_simulated: int = 0  # of n_votes
    n_machine: int = 0
    n_skips: int = 0
    by_day: dict[date, int] = field(default_factory=dict)
    # None: unknown day
    by_annotator: dict[tuple[str, AnnotatorKind], dict[date | None, int]] = field(
        default_factory=dict
    )
    paces: dict[str, deque[float]] = field(default_factory=dict)
    last_at: dict[str, datetime] = field(default_factory=dict)

    def add_tally(self, tally: VoteTally, n: int) -> None:
        if tally.choice == Choice.SKIP:
            self.n_skips += n
            return
        if tally.annotator_kind == AnnotatorKind.MACHINE:
            self.n_machine += n
        else:
            self.n_votes += n
            if tally.annotator_kind == AnnotatorKind.SIMULATED:
                self.n_simulated += n
            if tally.day is not None:
                self.by_day[tally.day] = self.by_day.get(tally.day, 0) + n
        days = self.by_annotator.setdefault((tally.annotator_id, tally.annotator_kind), {})
        days[tally.day] = days.get(tally.day, 0) + n


class VoteCounter:
    """One count per process, updated by its callers."""

    def __init__(self, store: Store, cache_times: CacheTimes = CacheTimes()):  # noqa: B008 (frozen)
        self._store = store
        self._lock = threading.Lock()
        self._counted = VoteCounts()
        self._by_reader = ReaderCounts[VoteCounts](cache_times)
        self.work: CachedValue[RemainingWork] = CachedValue(
            store.assignments.remaining_work,
            cache_times.work_s,
            may_lag=True,
            quick_s=cache_times.quick_s,
        )
        self.figures = AnnotatorStatistics(store)

    def counts(self, *, seen_by: str | None = None) -> VoteCounts:
        """The count up to the newest vote. With `seen_by` as in `Votes.search`, counted from the
        first vote, because judging changes what the reader sees.
        """
        if seen_by is not None:
            newest = self._store.votes.max_seq()
            return self._by_reader.get(seen_by, newest, lambda: self._visible(seen_by, newest))
        with self._lock:
            return self._catch_up()

    def counts_within(self, wait_s: float) -> VoteCounts | None:
        """`counts`; None while another thread counts for longer than `wait_s`, as after a start."""
        if not self._lock.acquire(timeout=wait_s):
            return None
        try:
            return self._catch_up()
        finally:
            self._lock.release()

    def days_within(self, wait_s: float) -> Collection[date]:
        """The days with votes; none while another thread counts for longer than `wait_s`."""
        counted = self.counts_within(wait_s)
        return () if counted is None else list(counted.by_day)

    def _catch_up(self) -> VoteCounts:
        known = self._counted
        newest = self._store.votes.max_seq()
        if newest > known.seq:
            self._count_new_votes(known, newest)
        return known

    def is_current(self, seen_by: str) -> bool:
        """Whether the last count for a blind reader includes the newest vote."""
        return self._by_reader.is_current(seen_by, self._store.votes.max_seq())

    def _visible(self, reader_id: str, newest: int) -> VoteCounts:
        visible = VoteCounts()
        self._count_new_votes(visible, newest, reader_id)
        return visible

    def _count_new_votes(self, known: VoteCounts, newest: int, seen_by: str | None = None) -> None:
        # All votes are read before any is counted, so that a failure of the store counts nothing
        # twice.
        cast = self._store.votes.tallies(known.seq, up_to_seq=newest, seen_by=seen_by)
        replaced = self._store.votes.superseded_tallies(
            known.seq, up_to_seq=newest, seen_by=seen_by
        )
        # How many of the newest votes a blind reader sees depends on the others, so all that they
        # see are read.
        first = known.seq if seen_by is not None else max(known.seq, newest - PACE_WITHIN)
        paces = self._store.votes.paces(first, up_to_seq=newest, seen_by=seen_by)
        for tally in cast:
            known.add_tally(tally, tally.n)
            if tally.last_voted_at is not None:
                known.last_at[tally.annotator_id] = max(
                    tally.last_voted_at, known.last_at.get(tally.annotator_id, tally.last_voted_at)
                )
        for tally in replaced:
            known.add_tally(tally, -tally.n)
        for annotator_id, seconds in paces:
            if seconds is not None:
                known.paces.setdefault(annotator_id, deque(maxlen=PACE_OF)).append(seconds)
        known.seq = newest

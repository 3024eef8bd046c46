"""Counts votes by annotator and day: the counted ones once, then those cast since."""

import threading
from collections import deque
from dataclasses import dataclass, field
from datetime import date, datetime

from rlhf_pipeline.records import AnnotatorKind, Choice
from rlhf_pipeline.store import Store
from rlhf_pipeline.store.vote_lists import VoteTally

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
    by_annotator: dict[tuple[str, AnnotatorKind], int] = field(default_factory=dict)
    paces: dict[str, deque[float]] = field(default_factory=dict)
    last_at: dict[str, datetime] = field(default_factory=dict)

    def add_annotator(self, tally: VoteTally) -> None:
        who, kind = tally.annotator_id or "", tally.annotator_kind
        if tally.n > 0 and tally.last_voted_at is not None:
            self.last_at[who] = max(tally.last_voted_at, self.last_at.get(who, tally.last_voted_at))
        if tally.choice == Choice.SKIP:
            self.n_skips += tally.n
            return
        if kind == AnnotatorKind.MACHINE:
            self.n_machine += tally.n
        else:
            self.n_votes += tally.n
        if kind == AnnotatorKind.SIMULATED:
            self.n_simulated += tally.n
        self.by_annotator[who, kind] = self.by_annotator.get((who, kind), 0) + tally.n

    def add_day(self, tally: VoteTally) -> None:
        is_counted = tally.choice != Choice.SKIP and tally.annotator_kind != AnnotatorKind.MACHINE
        if is_counted and tally.day is not None:
            self.by_day[tally.day] = self.by_day.get(tally.day, 0) + tally.n


class VoteCounter:
    """One count per process. Counted votes stay counted; each caller adds those cast since."""

    def __init__(self, store: Store):
        self._store = store
        self._lock = threading.Lock()
        self._counted = VoteCounts()

    def counts(self) -> VoteCounts:
        """The count up to the newest vote."""
        newest = self._store.votes.max_seq()
        with self._lock:
            if newest > self._counted.seq:
                self._count_new_votes(self._counted, newest)
            return self._counted

    def _count_new_votes(self, known: VoteCounts, newest: int) -> None:
        # All votes are read before any is counted, so that a failure of the store counts nothing
        # twice.
        votes = self._store.votes
        cast = votes.tallies("annotator_id", known.seq, up_to_seq=newest)
        by_day = votes.tallies("day", known.seq, up_to_seq=newest)
        paces = votes.paces(max(known.seq, newest - PACE_WITHIN), up_to_seq=newest)
        for tally in cast:
            known.add_annotator(tally)
        for tally in by_day:
            known.add_day(tally)
        for annotator_id, seconds in paces:
            if seconds is not None:
                known.paces.setdefault(annotator_id, deque(maxlen=PACE_OF)).append(seconds)
        known.seq = newest

"""Reads sums of votes, after the votes that wait were counted into them."""

import logging
import threading
from collections.abc import Sequence
from dataclasses import dataclass

from rlhf_pipeline.errors import PipelineError
from rlhf_pipeline.metrics.vote_sums import count_new_votes
from rlhf_pipeline.records import RatioSums
from rlhf_pipeline.store import Store
from rlhf_pipeline.store.vote_sums import VoteCell
from rlhf_pipeline.votes.sums import SUMS

log = logging.getLogger(__name__)

COUNTED = "choice.skip"  # the measure that counts every vote
AT_ONCE = 5_000  # waiting votes that a request counts; a thread counts more

Place = tuple[str, ...]


@dataclass(frozen=True)
class ReadSums:
    """Sums by measure and place, the values of the asked columns, up to `seq` of `newest` votes."""

    seq: int
    newest: int
    by_measure: dict[str, dict[Place, RatioSums]]


class SumsReader:
    """One per process."""

    def __init__(self, store: Store):
        self._store = store
        self._lock = threading.Lock()  # held while votes are counted

    def read(self, measures: Sequence[str], by: Sequence[str], cell: VoteCell) -> ReadSums:
        """Up to the newest vote; while many votes wait to be counted, up to an earlier one."""
        newest = self._count_waiting()
        head, rows = self._store.vote_sums.read(measures, by, cell)
        found: dict[str, dict[Place, RatioSums]] = {}
        for row in rows:
            place, sums = tuple(row[1 : -len(SUMS)]), RatioSums(*row[-len(SUMS) :])
            found.setdefault(row[0], {})[place] = sums
        return ReadSums(head.seq, max(head.seq, newest), found)

    def group_sizes(self) -> dict[str, int]:
        """Number of people with a vote by group."""
        self._count_waiting()
        return self._store.vote_sums.group_sizes()

    def _count_waiting(self) -> int:
        """Returns the newest vote's seq."""
        newest = self._store.votes.max_seq()
        waiting = newest - self._store.vote_sums.head().seq
        if waiting > AT_ONCE:
            threading.Thread(target=self._count, name="vote-sums", daemon=True).start()
        elif waiting > 0:
            self._count(waits=True)
        return newest

    def _count(self, *, waits: bool = False) -> None:
        if not self._lock.acquire(blocking=waits):
            return
        try:
            count_new_votes(self._store)
        except PipelineError as fault:  # the next request tries again
            log.warning("Votes were not counted into their sums: %s", fault)
        finally:
            self._lock.release()

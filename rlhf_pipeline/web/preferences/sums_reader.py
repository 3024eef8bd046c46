"""Reads sums of votes up to the newest vote: stored ones, and those of votes not counted yet."""

import logging
import threading
from collections import deque
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import pandas as pd

from rlhf_pipeline.errors import PipelineError
from rlhf_pipeline.metrics.vote_sums import SumsChange, count_new_votes, sum_change
from rlhf_pipeline.records import AnnotatorCell, RatioSums
from rlhf_pipeline.store import Store
from rlhf_pipeline.store.vote_sums import SumsHead, VoteCell
from rlhf_pipeline.votes.annotator_groups import MIN_ANNOTATORS
from rlhf_pipeline.votes.sums import KEY, SUMS
from rlhf_pipeline.web.memory_cache import ExpiringCache

log = logging.getLogger(__name__)

COUNTED = "choice.skip"  # the measure that counts every vote
# As many are added to the stored sums within a request, a few in 0.2 s and all of them in seconds:
# so the first look at a small project shows its votes.
LIVE_VOTES = 10_000
COUNTED_FROM = 200  # waiting votes from which a thread counts them
KEPT = 64  # answers of the store

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
        self._lock = threading.Lock()
        self._live: tuple[SumsHead, int, SumsChange] | None = None
        self._stored = ExpiringCache[object, Sequence[Any]](KEPT)
        self._counting = threading.Lock()  # held by the thread that counts

    def read(self, measures: Sequence[str], by: Sequence[str], cell: VoteCell) -> ReadSums:
        """Up to the newest vote; while many votes wait to be counted, up to an earlier one."""
        newest = self._store.votes.max_seq()
        head = self._store.vote_sums.head()
        key = head, tuple(measures), tuple(by), cell
        rows = self._stored.get(key)
        if rows is None:
            head, rows = self._store.vote_sums.read(measures, by, cell)
            self._stored.put((head, *key[1:]), rows)
        waiting = newest - head.seq
        if waiting >= COUNTED_FROM:
            self._start_counting()
        found: dict[str, dict[Place, RatioSums]] = {}
        for row in rows:
            found.setdefault(row[0], {})[tuple(row[1 : -len(SUMS)])] = RatioSums(*row[-len(SUMS) :])
        if 0 < waiting <= LIVE_VOTES:
            live = self._read_live(head, newest).sums
            _add_rows(found, live[live["measure"].isin(measures)], by, cell)
            return ReadSums(newest, newest, found)
        return ReadSums(head.seq, newest, found)

    def group_sizes(self) -> dict[str, int]:
        """Number of people with a vote by group, those of waiting votes included."""
        sizes = self._store.vote_sums.group_sizes()
        seq, newest = self._store.vote_sums.head().seq, self._store.votes.max_seq()
        if newest - seq <= LIVE_VOTES:
            origins = self._store.vote_sums.first_origins(seq, newest)
            known = self._store.vote_sums.groups(list(origins))
            for who, origin in origins.items():
                if who not in known:
                    sizes[origin] = sizes.get(origin, 0) + 1
        return sizes

    def members(self, group: str) -> set[str]:
        """The people of a group, those of waiting votes included."""
        return {*self._store.vote_sums.members(group), *self._find_new_members(group)}

    def count_voters(
        self,
        members: Iterable[str],
        cell: VoteCell,
        up_to_seq: int,
        by: str | None = None,
        values: Iterable[str] = ("",),
    ) -> dict[str, int]:
        """How many of these people voted in the cell, by each of these values of a column, at most
        MIN_ANNOTATORS; skips do not count. `up_to_seq` is the `seq` of the figures to be shown.
        """
        n = dict.fromkeys(values, 0)
        # Start with a few members: enough where most of them voted.
        left, size, most = deque(sorted(members)), MIN_ANNOTATORS, MIN_ANNOTATORS
        while left and (undecided := [value for value, count in n.items() if count < most]):
            batch = [left.popleft() for _ in range(min(size, len(left)))]
            for _, value in self._read_voters(batch, cell, up_to_seq, by, undecided):
                n[value] += 1
            size *= 2
        return {value: min(count, most) for value, count in n.items()}

    def _read_voters(
        self,
        people: Sequence[str],
        cell: VoteCell,
        up_to_seq: int,
        by: str | None,
        values: Sequence[str],
    ) -> list[tuple[str, str]]:
        """The (annotator, value) pairs with at least one vote."""
        head, found = self._store.vote_sums.count_by_annotator(people, cell, by, values)
        asked, places = set(people), set(values)
        if 0 < up_to_seq - head.seq <= LIVE_VOTES:
            for counted, n in self._read_live(head, up_to_seq).by_annotator.items():
                place = "" if by is None else getattr(counted, by)
                if counted.annotator_id in asked and _is_in(counted, cell):
                    key = counted.annotator_id, place
                    found[key] = found.get(key, 0) + n
        return [(who, place) for (who, place), n in found.items() if n > 0 and place in places]

    def _find_new_members(self, group: str) -> list[str]:
        """The people of a group with a vote that waits to be counted."""
        seq, newest = self._store.vote_sums.head().seq, self._store.votes.max_seq()
        if newest - seq > LIVE_VOTES:
            return []
        origins = self._store.vote_sums.first_origins(seq, newest)
        known = self._store.vote_sums.groups(list(origins))
        return [who for who, origin in origins.items() if known.get(who, origin) == group]

    def cells(self, *columns: str) -> list[Place]:
        """The combinations of these columns that have votes."""
        places = self.read([COUNTED], columns, VoteCell()).by_measure.get(COUNTED, {})
        return sorted(places)

    def _read_live(self, head: SumsHead, newest: int) -> SumsChange:
        with self._lock:
            if self._live is None or self._live[:2] != (head, newest):
                change = sum_change(self._store, head.seq, newest)
                self._live = head, newest, change
            return self._live[2]

    def _start_counting(self) -> None:
        if self._counting.acquire(blocking=False):
            threading.Thread(target=self._count, name="vote-sums", daemon=True).start()

    def _count(self) -> None:
        try:
            count_new_votes(self._store)
        except PipelineError as fault:  # the next request tries again
            log.warning("Votes were not counted into their sums: %s", fault)
        finally:
            self._counting.release()


def _add_rows(
    found: dict[str, dict[Place, RatioSums]],
    change: pd.DataFrame,
    by: Sequence[str],
    cell: VoteCell,
) -> None:
    """Add the rows of a change that belong to the cell."""
    rows = change
    if cell.since is not None:
        rows = rows[rows["day"] >= cell.since.isoformat()]
    if cell.until is not None:
        rows = rows[rows["day"] <= cell.until.isoformat()]
    for name, value in cell.select(by).items():
        rows = rows[rows[name] != "" if value is None else rows[name] == value]
    for row in rows[[KEY[0], *by, *SUMS]].itertuples(index=False, name=None):
        places = found.setdefault(row[0], {})
        place, sums = tuple(row[1 : -len(SUMS)]), row[-len(SUMS) :]
        known = places.get(place, (0.0,) * len(SUMS))
        places[place] = RatioSums(*(a + b for a, b in zip(known, sums, strict=True)))


def _is_in(counted: AnnotatorCell, cell: VoteCell) -> bool:
    return (
        (cell.since is None or counted.day >= cell.since.isoformat())
        and (cell.until is None or counted.day <= cell.until.isoformat())
        and all(value in (None, getattr(counted, kind)) for kind, value in cell.kinds.items())
    )

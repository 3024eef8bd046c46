"""Keeps figures of days in memory: a day is counted once, and anew after a vote changed it."""

import threading
from collections.abc import Callable, Hashable, Iterable, Mapping, Sequence
from typing import Any

from rlhf_pipeline.store import Store
from rlhf_pipeline.web.memory_cache import ExpiringCache

MAX_KINDS = 24  # of figures; each holds the days that were asked for


class DayFigures:
    """One per process. Without it each page would count a million votes again."""

    def __init__(self, store: Store):
        self._store = store
        self._lock = threading.Lock()
        self._seq = 0
        self._days: dict[str, int] = {}  # with the seq of the vote that changed each last
        self._known = ExpiringCache[Hashable, dict[str, tuple[int, Any]]](MAX_KINDS)

    def days(self) -> dict[str, int]:
        """All days with votes, up to the newest vote."""
        with self._lock:
            newest = self._store.votes.max_seq()
            if newest > self._seq:
                self._days |= self._store.votes.changed_days(self._seq)
                self._seq = newest
            return dict(self._days)

    def read(
        self,
        kind: Hashable,
        days: Iterable[str],
        count: Callable[[Sequence[str]], Mapping[str, Any]],
    ) -> dict[str, Any]:
        """Figures of one kind by day, of days with votes; `count` reads those that are unknown or
        changed. A day that it leaves out has ().
        """
        now = self.days()
        wanted = sorted(now.keys() & set(days))
        known = self._known.get(kind) or {}
        changed = [day for day in wanted if known.get(day, (0, None))[0] < now[day]]
        if changed:
            counted = count(changed)
            known = known | {day: (now[day], counted.get(day, ())) for day in changed}
            self._known.put(kind, known)
        return {day: known[day][1] for day in wanted}

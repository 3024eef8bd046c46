"""Keeps figures of days in memory: a day is counted once, and anew after a vote changed it."""

import threading
import time
from collections.abc import Callable, Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from rlhf_pipeline.store import Store
from rlhf_pipeline.web.memory_cache import ExpiringCache

MAX_KINDS = 24  # of figures; each holds the days that were asked for


class DayFigures:
    """One per process. Without it each page would count a million votes again. A day that changed
    is counted anew once its figures are `seconds` old.
    """

    def __init__(
        self, store: Store, seconds: float, monotonic: Callable[[], float] = time.monotonic
    ):
        self._store = store
        self._seconds = seconds
        self._monotonic = monotonic
        self._lock = threading.Lock()
        self._seq = 0
        self._days: dict[str, int] = {}  # with the seq of the vote that changed each last
        self._known = ExpiringCache[Hashable, "_Figures"](MAX_KINDS)

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
        changed. A day that it leaves out has (). Threads that ask for the same kind take turns.
        """
        now = self.days()
        wanted = sorted(now.keys() & set(days))
        figures = self._find(kind)
        with figures.lock:
            changed = [day for day in wanted if self._is_old(figures.days.get(day), now[day])]
            if changed:
                kept_until = self._monotonic() + self._seconds
                counted = count(changed)
                for day in changed:
                    figures.days[day] = _Day(now[day], kept_until, counted.get(day, ()))
            return {day: figures.days[day].figure for day in wanted}

    def _find(self, kind: Hashable) -> "_Figures":
        with self._lock:
            figures = self._known.get(kind) or _Figures()
            self._known.put(kind, figures)
            return figures

    def _is_old(self, known: "_Day | None", seq: int) -> bool:
        return known is None or (known.seq < seq and known.kept_until <= self._monotonic())


class _Day(NamedTuple):
    seq: int  # of the vote that had changed the day last
    kept_until: float
    figure: Any


@dataclass
class _Figures:
    """Of one kind."""

    days: dict[str, _Day] = field(default_factory=dict)
    lock: threading.Lock = field(default_factory=threading.Lock)

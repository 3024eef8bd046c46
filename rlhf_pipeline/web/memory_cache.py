"""Thread-safe caches in memory: of values for a time, and of figures by day of votes."""

import threading
import time
from collections import OrderedDict
from collections.abc import Callable, Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Generic, NamedTuple, TypeVar

from rlhf_pipeline.store import Store

K = TypeVar("K", bound=Hashable)
V = TypeVar("V")
MAX_KINDS = 24  # of figures; each holds the days that were asked for


class ExpiringCache(Generic[K, V]):
    """At most `most` entries, each for at most `seconds`; evicts the least recently used."""

    def __init__(
        self,
        most: int,
        seconds: float = float("inf"),
        monotonic: Callable[[], float] = time.monotonic,
    ):
        self._most = most
        self._seconds = seconds
        self._now = monotonic
        self._lock = threading.Lock()
        self._entries: OrderedDict[K, tuple[float, V]] = OrderedDict()

    def get(self, key: K) -> V | None:
        with self._lock:
            entry = self._entries.get(key)
            if entry is None:
                return None
            if self._now() - entry[0] > self._seconds:
                del self._entries[key]
                return None
            self._entries.move_to_end(key)
            return entry[1]

    def put(self, key: K, value: V) -> None:
        with self._lock:
            self._entries[key] = (self._now(), value)
            self._entries.move_to_end(key)
            while len(self._entries) > self._most:
                self._entries.popitem(last=False)

    def forget(self, key: K) -> None:
        with self._lock:
            self._entries.pop(key, None)

    def clear(self) -> None:
        with self._lock:
            self._entries.clear()


@dataclass(frozen=True)
class CacheTimes:
    """Cache times in seconds, by content. Live figures are at most 10 s old: `figures_s` and
    `work_s`, which adds these up, leave the time of counting.
    """

    token_s: float = 0.5  # a token that is revoked works no longer than this
    terms_s: float = 0.5  # rules and guidelines
    work_s: float = 1.0  # what is left to judge
    champion_s: float = 1.0  # a query of MLflow takes longer than the route itself
    figures_s: float = 7.0  # what is counted over many votes
    scrape_s: float = 5.0  # what Prometheus reads


class CachedValue(Generic[V]):
    """One value, read again when it is older than `seconds`; one thread reads at a time, and those
    that wait for it take what it read.
    """

    def __init__(
        self,
        read: Callable[[], V],
        seconds: float,
        monotonic: Callable[[], float] = time.monotonic,
    ):
        self._read = read
        self._seconds = seconds
        self._now = monotonic
        self._lock = threading.Lock()
        self._value: tuple[float, V] | None = None  # with the time at which reading began

    def __call__(self) -> V:
        called_at = self._now()
        with self._lock:
            if self._value is None or called_at - self._value[0] > self._seconds:
                self._value = self._now(), self._read()
            return self._value[1]

    def forget(self) -> None:
        with self._lock:
            self._value = None


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
        voted_days = sorted(now.keys() & set(days))
        figures = self._find(kind)
        with figures.lock:
            changed = [day for day in voted_days if self._is_old(figures.days.get(day), now[day])]
            if changed:
                kept_until = self._monotonic() + self._seconds
                counted = count(changed)
                for day in changed:
                    figures.days[day] = _Day(now[day], kept_until, counted.get(day, ()))
            return {day: figures.days[day].figure for day in voted_days}

    def _find(self, kind: Hashable) -> "_Figures":
        with self._lock:
            figures = self._known.get(kind) or _Figures()
            self._known.put(kind, figures)
            return figures

    def _is_old(self, day: "_Day | None", seq: int) -> bool:
        return day is None or (day.seq < seq and day.kept_until <= self._monotonic())


class _Day(NamedTuple):
    seq: int  # of the vote that had changed the day last
    kept_until: float
    figure: Any


@dataclass
class _Figures:
    """Of one kind."""

    days: dict[str, _Day] = field(default_factory=dict)
    lock: threading.Lock = field(default_factory=threading.Lock)

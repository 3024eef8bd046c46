"""Thread-safe caches in memory."""

import threading
import time
from collections import OrderedDict
from collections.abc import Callable, Hashable
from dataclasses import dataclass
from typing import Generic, TypeVar

K = TypeVar("K", bound=Hashable)
V = TypeVar("V")


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
    stages_s: float = 5.0  # the newest file of each stage; the state of schedules and sensors


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
        asked = self._now()
        with self._lock:
            if self._value is None or asked - self._value[0] > self._seconds:
                self._value = self._now(), self._read()
            return self._value[1]

    def forget(self) -> None:
        with self._lock:
            self._value = None

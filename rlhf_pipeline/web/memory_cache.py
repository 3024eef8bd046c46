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


OLD_S = 60.0
MAX_CACHED_READERS = 100


@dataclass(frozen=True)
class CacheTimes:
    """Cache times in seconds, by content."""

    token_s: float = 0.5  # a token that is revoked works no longer than this
    terms_s: float = 0.5  # rules and guidelines
    work_s: float = 1.0  # what is left to judge
    champion_s: float = 1.0  # a query of MLflow takes longer than the route itself
    fits_s: float = 10.0  # fits of the annotator model
    scrape_s: float = 5.0  # what Prometheus reads
    stages_s: float = 5.0  # the newest file of each stage; the state of schedules and sensors
    # if reading takes longer, the previous value is returned while a new one is read
    quick_s: float = 0.05
    quick_probe_s: float = 0.3  # CPU time of a quick count of predictions beside their votes
    probe_wait_s: float = 0.25  # to wait for a new count before the previous one is returned
    # a slow count is repeated at the earliest after this many times its duration
    rest: float = 20.0


class CachedValue(Generic[V]):
    """One value, read again when it is older than `seconds`.

    With `may_lag`, callers get the previous value, at most a minute old, while a thread reads the
    next.
    """

    def __init__(
        self,
        read: Callable[[], V],
        seconds: float,
        monotonic: Callable[[], float] = time.monotonic,
        *,
        may_lag: bool = False,
        quick_s: float = CacheTimes.quick_s,
    ):
        self._read = read
        self._seconds = seconds
        self._now = monotonic
        self._may_lag = may_lag
        self._quick_s = quick_s
        self._lock = threading.Lock()  # held by the reading thread
        self._value: tuple[float, float, V] | None = None  # when reading began, how long it took

    def __call__(self) -> V:
        known = self._value
        if known is None:
            return self._renew()
        age = self._now() - known[0]
        if age <= self._seconds:
            return known[2]
        if not self._may_lag or known[1] <= self._quick_s or age > OLD_S:
            return self._renew()
        if age > self._seconds + known[1] and not self._lock.locked():
            threading.Thread(target=self._renew, daemon=True).start()
        return known[2]

    def forget(self) -> None:
        self._value = None

    def _renew(self) -> V:
        asked_at = self._now()
        with self._lock:
            known = self._value
            # another thread read it while this one waited
            if known is not None and asked_at - known[0] <= self._seconds:
                return known[2]
            began = self._now()
            value = self._read()
            self._value = (began, self._now() - began, value)
            return value


@dataclass(frozen=True)
class _Count(Generic[V]):
    seq: int
    took_s: float
    again_at: float
    value: V


class _Slot(Generic[V]):
    def __init__(self) -> None:
        self.lock = threading.Lock()  # held while the reader's votes are counted
        self.known: _Count[V] | None = None


class ReaderCounts(Generic[V]):
    """One count per reader, made again after a newer vote, but no sooner than `rest` times as long
    as a slow count took.

    One request of a reader counts at a time. No reader receives the count of another.
    """

    def __init__(
        self, times: CacheTimes = CacheTimes(), monotonic: Callable[[], float] = time.monotonic
    ):
        self._quick_s = times.quick_s
        self._rest = times.rest
        self._now = monotonic
        self._lock = threading.Lock()
        self._slots = ExpiringCache[str, _Slot[V]](MAX_CACHED_READERS)

    def get(self, reader_id: str, newest_seq: int, count: Callable[[], V]) -> V:
        """The count for the reader, up to `newest_seq` or, if counting takes long, up to an earlier
        vote.
        """
        slot = self._slot(reader_id)
        known = slot.known
        if known is not None and self._holds(known, newest_seq):
            return known.value
        if known is None or known.took_s <= self._quick_s:
            slot.lock.acquire()
        elif not slot.lock.acquire(blocking=False):
            return known.value
        try:
            known = slot.known  # another request may have counted meanwhile
            if known is None or not self._holds(known, newest_seq):
                began = self._now()
                value = count()
                ended = self._now()
                took = ended - began
                again_at = ended + took * self._rest if took > self._quick_s else ended
                slot.known = known = _Count(newest_seq, took, again_at, value)
            return known.value
        finally:
            slot.lock.release()

    def is_current(self, reader_id: str, newest_seq: int) -> bool:
        """Whether the reader's count holds all votes up to this one."""
        known = self._slot(reader_id).known
        return known is not None and known.seq >= newest_seq

    def _holds(self, known: _Count[V], newest_seq: int) -> bool:
        return known.seq >= newest_seq or self._now() < known.again_at

    def _slot(self, reader_id: str) -> _Slot[V]:
        with self._lock:
            slot = self._slots.get(reader_id) or _Slot[V]()
            self._slots.put(reader_id, slot)
            return slot

"""What is kept in memory between requests: how much, how long, and read by whom."""

import threading
import time
from concurrent.futures import ThreadPoolExecutor

from rlhf_pipeline.web.memory_cache import (
    OLD_S,
    CachedValue,
    CacheTimes,
    ExpiringCache,
    ReaderCounts,
)


class Hand:
    """A clock that is set by hand."""

    at = 0.0

    def __call__(self) -> float:
        return self.at


def test_the_one_that_was_not_used_for_longest_goes_first():
    kept = ExpiringCache[str, int](2)
    for i, name in enumerate("abc"):
        kept.put(name, i)
        kept.get("a")
    assert (kept.get("a"), kept.get("b"), kept.get("c")) == (0, None, 2)
    kept.forget("a")
    assert kept.get("a") is None
    kept.clear()
    assert kept.get("c") is None


def test_an_entry_lasts_its_time_from_when_it_was_put():
    clock = Hand()
    kept = ExpiringCache[str, int](10, seconds=5, monotonic=clock)
    kept.put("a", 1)
    clock.at = 4
    assert kept.get("a") == 1
    clock.at = 5.1
    assert kept.get("a") is None


def test_a_value_that_is_read_quickly_is_never_old():
    clock, reads = Hand(), []
    current = CachedValue(lambda: reads.append(clock.at) or clock.at, 1.0, clock)
    assert current() == 0
    clock.at = 0.9
    assert current() == 0
    clock.at = 500
    assert current() == 500
    current.forget()
    clock.at = 500.1
    assert current() == 500.1
    assert reads == [0, 500, 500.1]


def test_a_value_that_takes_long_is_read_behind_the_back_of_whoever_asks_but_none_is_a_minute_old():
    clock, gate = Hand(), threading.Event()
    gate.set()
    n = 0

    def slowly() -> int:
        nonlocal n
        gate.wait(10)
        clock.at += 1  # it takes a second
        n += 1
        return n

    current = CachedValue(slowly, 1.0, clock, may_lag=True)
    assert current() == 1
    gate.clear()
    clock.at += 5
    start = time.monotonic()
    assert [current() for _ in range(20)] == [1] * 20  # nobody waits, and one thread reads
    assert time.monotonic() - start < 8, "less than whoever reads is held up"
    gate.set()
    while n < 2:
        assert time.monotonic() - start < 30
        time.sleep(0.01)
    while current() == 1:
        assert time.monotonic() - start < 30
    clock.at += OLD_S + 10
    before = n
    assert current() == before + 1


def test_many_who_ask_at_once_read_once():
    n = 0

    def slowly() -> int:
        nonlocal n
        time.sleep(0.1)
        n += 1
        return n

    current = CachedValue(slowly, 60.0, may_lag=True)
    threads = [threading.Thread(target=current) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert n == 1


def test_slow_count_of_a_reader_rests_and_quick_one_does_not():
    clock, times = Hand(), CacheTimes(quick_s=0.05, rest=20)
    counts = ReaderCounts[float](times, clock)

    def count(takes: float) -> float:
        clock.at += takes
        return clock.at

    assert counts.get("ann", 1, lambda: count(0.01)) == 0.01
    assert counts.get("ann", 1, lambda: count(0.01)) == 0.01, "nothing new"
    assert counts.get("ann", 2, lambda: count(0.5)) == 0.51
    clock.at += 9.9
    assert counts.get("ann", 3, lambda: count(0.5)) == 0.51
    assert not counts.is_current("ann", 3)
    clock.at += 0.2
    assert counts.get("ann", 3, lambda: count(0.5)) == clock.at
    assert counts.is_current("ann", 3)


def test_readers_do_not_share_counts():
    counts = ReaderCounts[str]()
    assert [counts.get(who, 1, lambda who=who: f"of {who}") for who in ("ann", "bob", "ann")] == [
        "of ann",
        "of bob",
        "of ann",
    ]
    assert not counts.is_current("cyd", 1)


def test_one_request_of_a_reader_counts_and_others_get_the_previous_count():
    clock = Hand()
    counting = threading.Event()
    gate = threading.Event()
    counts = ReaderCounts[int](CacheTimes(quick_s=0.05, rest=0), clock)

    def count(n: int) -> int:
        counting.set()
        assert gate.wait(30)
        clock.at += 1
        return n

    with ThreadPoolExecutor(8) as pool:
        first = [pool.submit(counts.get, "ann", 1, lambda n=n: count(n)) for n in range(8)]
        gate.set()
        assert len({one.result() for one in first}) == 1
        gate.clear()
        counting.clear()
        second = pool.submit(counts.get, "ann", 2, lambda: count(20))
        assert counting.wait(30)
        assert counts.get("ann", 2, lambda: count(30)) == first[0].result()
        gate.set()
        assert second.result() == 20

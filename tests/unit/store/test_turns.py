"""Writers that wait are seen, and a long series of transactions lets them go first. No test
measures how long anybody waits.
"""

import threading
import time
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime

from rlhf_pipeline.store.write_queue import LONGEST_PAUSE_S, WriteQueue

NOON = datetime(2026, 1, 1, 12, tzinfo=UTC)


def test_a_series_lets_those_who_wait_go_first(
    store, make_vote, make_comparisons, make_predictions, monkeypatch
):
    """Not how long it waits, but that it asks between its transactions, and that order and content
    stay.
    """
    store.comparisons.publish(make_comparisons(4), published_at=NOON)
    asked = []
    monkeypatch.setattr(
        store.database._turns, "give_way", lambda others=None: asked.append(store.votes.max_seq())
    )
    monkeypatch.setattr("rlhf_pipeline.store.votes.VOTES_PER_TRANSACTION", 10)
    cast = store.votes.cast_many(
        [make_vote(f"c{i % 4}", idempotency_key=f"k{i}") for i in range(35)]
    )
    assert asked == [10, 20, 30]
    assert [vote.idempotency_key for vote in cast] == [f"k{i}" for i in range(35)]
    asked.clear()
    comparisons = make_comparisons(1200, prefix="d")
    store.comparisons.publish(comparisons, published_at=NOON)
    store.predictions.replay(make_predictions(comparisons), data_seq=0)
    assert len(asked) == 2 + 2


def test_giving_way_ends_when_nobody_waits_and_after_a_while_in_any_case(tmp_path):
    turns = WriteQueue(tmp_path / "mark", 1.0, "here")
    start = time.monotonic()
    turns.give_way()
    assert not turns.mark.exists()
    turns.give_way(lambda: True)
    assert time.monotonic() - start >= LONGEST_PAUSE_S


def test_whoever_waits_leaves_a_mark_for_other_processes(tmp_path):
    mine = WriteQueue(tmp_path / "mark", 1.0, "here")
    theirs = WriteQueue(tmp_path / "mark", 1.0, "here")
    assert not theirs._has_recent_waiter()
    looks = iter([False, False, True])
    assert mine.retry_until_begun(lambda: next(looks))
    mark = theirs.mark.stat().st_mtime
    assert abs(time.time() - mark) < 60


def test_waiting_for_a_turn_ends(tmp_path):
    turns = WriteQueue(None, 0.05, "here")
    assert not turns.retry_until_begun(lambda: False)
    with turns.hold_turn(), ThreadPoolExecutor(1) as pool:
        error = pool.submit(lambda: turns.hold_turn().__enter__()).exception()
    assert "another thread held the write lock longer than 0.05 s" in str(error)


def test_a_folder_that_takes_no_mark_only_costs_the_courtesy(tmp_path):
    turns = WriteQueue(tmp_path / "no" / "folder" / "mark", 1.0, "here")
    looks = iter([False, True])
    assert turns.retry_until_begun(lambda: next(looks))


def test_who_is_urgent_stands_behind_one_of_the_others_at_most():
    """Four that are patient wait while one of them has the turn: the lock that the urgent one wants
    has nobody else before it.
    """
    turns, go_on = WriteQueue(None, 30.0, "here"), threading.Event()
    order: list[str] = []

    def take(name: str, *, urgent: bool = False) -> None:
        with turns.hold_turn(urgent=urgent):
            order.append(name)
            go_on.wait(30)

    with ThreadPoolExecutor(6) as pool:
        asked = [pool.submit(take, f"patient {n}") for n in range(4)]
        _until(lambda: bool(order))
        wanted: list[threading.Lock] = []
        turns._acquire = lambda lock, deadline: (
            wanted.append(lock) or WriteQueue._acquire(turns, lock, deadline)
        )
        asked.append(pool.submit(take, "urgent", urgent=True))
        _until(lambda: bool(wanted))
        assert wanted == [turns._lock]
        assert turns._patient.locked()
        go_on.set()
        for one in asked:
            one.result(30)
    assert sorted(order) == ["patient 0", "patient 1", "patient 2", "patient 3", "urgent"]
    assert not turns._lock.locked()
    assert not turns._patient.locked()


def test_a_turn_that_never_comes_leaves_no_lock_behind():
    turns = WriteQueue(None, 0.05, "here")
    with turns.hold_turn(urgent=True), ThreadPoolExecutor(1) as pool:
        assert pool.submit(lambda: turns.hold_turn().__enter__()).exception() is not None
        assert not turns._patient.locked()


def _until(holds) -> None:
    deadline = time.monotonic() + 30
    while not holds():
        assert time.monotonic() < deadline
        time.sleep(0.001)

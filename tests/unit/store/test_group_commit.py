"""Single votes of many threads share a transaction, and only that: each has its own answer."""

import time
from concurrent.futures import ThreadPoolExecutor

import pytest

from rlhf_pipeline.core.errors import IdempotencyConflict, StoreError, UnknownComparison
from rlhf_pipeline.store import Store
from tests.unit.store.conftest import NOON


@pytest.fixture
def published(store, make_comparisons) -> Store:
    store.comparisons.publish(make_comparisons(4), published_at=NOON)
    return store


def test_waiting_threads_share_a_transaction(published, make_vote):
    """While one holds the lock the others gather."""
    with ThreadPoolExecutor(8) as pool:
        with published.database.write_transaction():
            waiting = [
                pool.submit(published.votes.cast, make_vote("c0", f"ann{i}")) for i in range(8)
            ]
            _until(lambda: len(published.votes._waiting) >= 7)
        cast = [future.result(120) for future in waiting]
    assert sorted(vote.seq for vote in cast) == list(range(1, 9))
    assert len({vote.received_at for vote in cast}) <= 2
    assert published.audit.verify() == 9


def test_one_refused_vote_does_not_refuse_its_neighbours(published, make_vote):
    published.votes.cast(make_vote("c1", idempotency_key="taken"))
    batch = [
        make_vote("c0"),
        make_vote("c99"),
        make_vote("c2"),
        make_vote("c2", "bob", idempotency_key="taken"),
        make_vote("c3"),
    ]
    with ThreadPoolExecutor(8) as pool:
        with published.database.write_transaction():
            waiting = [pool.submit(published.votes.cast, vote) for vote in batch]
            _until(lambda: len(published.votes._waiting) >= 4)
        errors = [type(future.exception(60)) for future in waiting]
    assert errors == [type(None), UnknownComparison, type(None), IdempotencyConflict, type(None)]
    assert published.votes.count() == 4
    assert published.audit.verify() == 5


def test_store_failure_reaches_every_waiting_thread(published, make_vote, monkeypatch):
    def fail(prepared):
        raise StoreError("disk full")

    with ThreadPoolExecutor(4) as pool:
        with published.database.write_transaction():
            waiting = [
                pool.submit(published.votes.cast, make_vote("c0", f"ann{i}")) for i in range(4)
            ]
            _until(lambda: len(published.votes._waiting) >= 3)
            monkeypatch.setattr(published.votes, "_record", fail)
        errors = [str(future.exception(60)) for future in waiting]
    assert errors.count("disk full") >= 3  # the first may have begun before
    monkeypatch.undo()
    assert published.votes.cast(make_vote("c1")).seq == published.votes.count()


def _until(is_so, seconds: float = 120) -> None:
    deadline = time.monotonic() + seconds
    while not is_so():
        assert time.monotonic() < deadline
        time.sleep(0.002)

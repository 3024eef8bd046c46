"""Single votes of many threads share a transaction, and only that: each has its own answer."""

import time
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime

import pytest

from rlhf_pipeline.errors import IdempotencyConflict, InvalidVote, StoreError, UnknownComparison
from rlhf_pipeline.store import Store
from rlhf_pipeline.store.write_queue import GroupCommit

NOON = datetime(2026, 1, 1, 12, tzinfo=UTC)


@pytest.fixture
def published(store, make_comparisons) -> Store:
    store.comparisons.publish(make_comparisons(4), published_at=NOON)
    return store


def test_threads_that_wait_share_a_transaction(published, make_vote):
    """While one holds the lock the others gather."""
    with ThreadPoolExecutor(8) as pool:
        with published.database.write_transaction():
            waiting = [
                pool.submit(published.votes.cast, make_vote("c0", f"ann{i}")) for i in range(8)
            ]
            _until(lambda: len(published.votes._together._waiting) >= 7)
        cast = [future.result(10) for future in waiting]
    assert sorted(vote.seq for vote in cast) == list(range(1, 9))
    assert len({vote.received_at for vote in cast}) <= 2
    assert published.audit.verify() == 9


def test_one_refused_vote_does_not_refuse_its_neighbours(published, make_vote):
    published.votes.cast(make_vote("c1", idempotency_key="taken"))
    sent = [
        make_vote("c0"),
        make_vote("c99"),
        make_vote("c2"),
        make_vote("c2", "bob", idempotency_key="taken"),
        make_vote("c3"),
    ]
    with ThreadPoolExecutor(8) as pool:
        with published.database.write_transaction():
            waiting = [pool.submit(published.votes.cast, vote) for vote in sent]
            _until(lambda: len(published.votes._together._waiting) >= 4)
        errors = [type(future.exception(10)) for future in waiting]
    assert errors == [type(None), UnknownComparison, type(None), IdempotencyConflict, type(None)]
    assert published.votes.count() == 4
    assert published.audit.verify() == 5


def test_a_vote_wrong_in_itself_never_reaches_the_queue(published, make_vote):
    with pytest.raises(InvalidVote):
        published.votes.cast(make_vote(choice="tie", strength=1))
    assert not published.votes._together._waiting


def test_a_failure_of_the_store_is_everybodys():
    def fails(group):
        raise StoreError("disk full")

    together = GroupCommit(fails, refusals=(InvalidVote,), most=10)
    with ThreadPoolExecutor(4) as pool:
        with together._turn:
            waiting = [pool.submit(together, i) for i in range(4)]
            _until(lambda: len(together._waiting) == 4)
        assert [str(future.exception(10)) for future in waiting] == ["disk full"] * 4


def test_a_failure_while_a_refused_group_is_recorded_one_by_one_answers_everybody():
    """A thread without an answer would hold the turn for ever, and no later vote would be taken."""

    def record(group):
        if "bad" in group:
            raise InvalidVote("bad")
        if "unlucky" in group:
            raise StoreError("disk full")
        return list(group)

    together = GroupCommit(record, refusals=(InvalidVote,), most=10)
    with ThreadPoolExecutor(4) as pool:
        waiting = []
        with together._turn:
            for n, vote in enumerate(("bad", "good", "unlucky", "behind"), start=1):
                waiting.append(pool.submit(together, vote))
                _until(lambda n=n: len(together._waiting) == n)
        answers = [future.exception(10) or future.result() for future in waiting]
    assert [str(answer) for answer in answers] == ["bad", "good", "disk full", "disk full"]
    assert together("later") == "later"


def test_no_group_is_larger_than_a_transaction():
    sizes = []

    def record(group):
        sizes.append(len(group))
        return list(group)

    together = GroupCommit(record, refusals=(), most=3)
    with ThreadPoolExecutor(8) as pool:
        with together._turn:
            waiting = [pool.submit(together, i) for i in range(8)]
            _until(lambda: len(together._waiting) == 8)
        assert sorted(future.result(10) for future in waiting) == list(range(8))
    assert max(sizes) == 3


def _until(is_so, seconds: float = 20) -> None:
    deadline = time.monotonic() + seconds
    while not is_so():
        assert time.monotonic() < deadline
        time.sleep(0.002)

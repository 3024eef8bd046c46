"""Requests by their key: answered once, and again, and not twice at a time."""

from concurrent.futures import ThreadPoolExecutor
from contextlib import nullcontext
from datetime import timedelta

import pytest

from rlhf_pipeline.errors import AlreadyRunning, IdempotencyConflict
from rlhf_pipeline.records import Role, User, utc_now
from rlhf_pipeline.store import StoredResponse


class ShiftedClock:
    shift = timedelta()

    def now(self):
        return utc_now() + self.shift


@pytest.fixture
def clock(store) -> ShiftedClock:
    store.database.clock = ShiftedClock()
    return store.database.clock


def test_what_was_answered_is_answered_again(store):
    assert store.requests.begin("ann", "k", "hash") is None
    store.requests.finish("ann", "k", StoredResponse(201, '{"a": "ü"}'))
    assert store.requests.begin("ann", "k", "hash") == StoredResponse(201, '{"a": "ü"}')


def test_another_request_under_the_key_is_refused_and_anothers_key_is_another(store):
    store.requests.begin("ann", "k", "hash")
    with pytest.raises(IdempotencyConflict, match="another request"):
        store.requests.begin("ann", "k", "other")
    assert store.requests.begin("bob", "k", "other") is None


def test_of_many_at_once_one_is_done(store):
    def begin(_: int) -> str:
        try:
            return "done" if store.requests.begin("ann", "k", "hash") is None else "answered"
        except AlreadyRunning:
            return "running"

    with ThreadPoolExecutor(8) as pool:
        told = list(pool.map(begin, range(20)))
    assert sorted(set(told)) == ["done", "running"]
    assert told.count("done") == 1


def test_one_whose_process_died_may_be_sent_again_after_a_minute(store, clock):
    store.requests.begin("ann", "k", "hash")
    clock.shift = timedelta(seconds=59)
    with pytest.raises(AlreadyRunning):
        store.requests.begin("ann", "k", "hash")
    clock.shift = timedelta(seconds=61)
    assert store.requests.begin("ann", "k", "hash") is None
    with pytest.raises(AlreadyRunning):
        store.requests.begin("ann", "k", "hash")


def test_one_that_failed_may_be_sent_again_at_once_and_what_was_answered_stays(store):
    store.requests.begin("ann", "k", "hash")
    store.requests.forget("ann", "k")
    assert store.requests.begin("ann", "k", "other") is None
    store.requests.finish("ann", "k", StoredResponse(200, "x"))
    store.requests.forget("ann", "k")
    assert store.requests.begin("ann", "k", "other") == StoredResponse(200, "x")


def test_an_act_and_its_answer_are_kept_together_or_not_at_all(store):
    store.requests.begin("ann", "k", "hash")

    def add(is_killed: bool) -> User:
        with store.requests.answer_transaction("ann", "k") as keep:
            user = store.users.add(
                email="new@example.org", name="New", roles=[Role.ANNOTATOR], actor="ann"
            )
            store.tokens.issue(user.user_id, kind="login", lifetime=timedelta(days=1), actor="ann")
            keep(StoredResponse(201, "made"))
            if is_killed:
                raise RuntimeError("killed")
        return user

    with pytest.raises(RuntimeError, match="killed"):
        add(is_killed=True)
    assert (store.users.count(), store.audit.count()) == (0, 0)
    store.requests.forget("ann", "k")
    assert store.requests.begin("ann", "k", "hash") is None
    user = add(is_killed=False)
    store.requests.forget("ann", "k")  # too late: it was done
    assert store.requests.begin("ann", "k", "hash") == StoredResponse(201, "made")
    assert store.users.get(user.user_id) == user
    assert [link.action for link in store.audit.after(0, limit=9)] == [
        "users.add",
        "roles.grant",
        "tokens.issue.login",
    ]
    assert store.audit.verify() == 3


def test_of_two_that_do_the_same_request_one_is_kept(store, clock):
    """The first hung for a minute and was taken for dead."""
    store.requests.begin("ann", "k", "hash")
    clock.shift = timedelta(seconds=61)
    assert store.requests.begin("ann", "k", "hash") is None
    for n in range(2):
        refused = pytest.raises(AlreadyRunning, match="sent twice") if n else nullcontext()
        with refused, store.requests.answer_transaction("ann", "k") as keep:
            store.guidelines.add("Be fair.", after=n, actor="ann")
            keep(StoredResponse(201, str(n)))
    assert store.requests.begin("ann", "k", "hash") == StoredResponse(201, "0")
    assert [one.version for one in store.guidelines.all()] == [1]
    store.audit.verify()


def test_answers_are_kept_for_a_week(store, clock):
    store.requests.begin("ann", "k", "hash")
    store.requests.finish("ann", "k", StoredResponse(200, "x"))
    clock.shift = timedelta(days=6, hours=23)
    assert store.requests.begin("ann", "k", "hash") == StoredResponse(200, "x")
    clock.shift = timedelta(days=7)
    assert store.requests.begin("ann", "k", "other") is None

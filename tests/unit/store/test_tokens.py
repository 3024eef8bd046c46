"""Tokens: kept as hashes, with an end; and tries at passwords, counted."""

import hashlib
from concurrent.futures import ThreadPoolExecutor
from datetime import timedelta

import pytest

from rlhf_pipeline.core.errors import NotFound, StoreError
from rlhf_pipeline.core.records import Role, utc_now
from rlhf_pipeline.store import Store

DAY = timedelta(days=1)


class ShiftedClock:
    def __init__(self) -> None:
        self.shift = timedelta()

    def now(self):
        return utc_now() + self.shift


@pytest.fixture
def clock(store: Store) -> ShiftedClock:
    store.database.clock = ShiftedClock()
    return store.database.clock


@pytest.fixture
def ann(store: Store) -> str:
    return store.users.add(email="ann@example.org", name="Ann", actor="test").user_id


def issue(store: Store, user_id: str, kind: str = "api", **more: object) -> str:
    return store.tokens.issue(user_id, **{"kind": kind, "lifetime": DAY, "actor": "test", **more})[
        0
    ]


def impatient(store: Store) -> Store:
    """The same store, opened by somebody who waits for the write lock for a tenth of a second."""
    url = store.database.url.render_as_string(hide_password=False)
    return Store.open(url, busy_timeout_s=0.1)


def test_a_secret_is_kept_as_its_hash_alone(store, ann):
    secret, token = store.tokens.issue(
        ann, kind="api", lifetime=DAY, actor="test", name="ci", scopes=["votes.read", "votes.cast"]
    )
    assert secret.startswith("rlhf_")
    assert len(secret) == 5 + 43  # 256 bits
    digest = hashlib.sha256(secret.encode()).hexdigest()
    assert token.token_id == digest[:16]
    with store.database.read_transaction() as connection:
        rows = str(connection.exec_driver_sql("SELECT * FROM tokens").all()) + str(
            connection.exec_driver_sql("SELECT * FROM audit").all()
        )
    assert digest in rows
    assert secret not in rows
    assert store.tokens.find(secret).scopes == ("votes.cast", "votes.read")
    assert store.tokens.find(secret[:-1]) is None


def test_token_expires(store, ann, clock):
    secret = issue(store, ann)
    clock.shift = timedelta(hours=23)
    assert store.tokens.find(secret) is not None
    clock.shift = DAY
    assert store.tokens.find(secret) is None


def test_token_is_revoked_by_owner_or_permission(store, ann):
    bob = store.users.add(email="bob@example.org", name="Bob", actor="test").user_id
    secret, token = store.tokens.issue(ann, kind="api", lifetime=DAY, actor="test")
    with pytest.raises(NotFound):
        store.tokens.revoke(token.token_id, actor=bob, user_id=bob)
    for beginning in ("", token.token_id[:11], "%", "_" * 16):
        with pytest.raises(NotFound, match="Nothing was revoked"):
            store.tokens.revoke(beginning, actor=ann)
    store.tokens.revoke(token.token_id, actor=ann, user_id=ann)
    assert store.tokens.find(secret) is None
    first = store.tokens.of_user(ann)[0].revoked_at
    store.tokens.revoke(token.token_id, actor=ann)
    assert store.tokens.of_user(ann)[0].revoked_at == first


def test_login_link_works_once_under_concurrency(store, ann):
    secret = issue(store, ann, "login")
    with ThreadPoolExecutor(8) as pool:
        redeemed = list(pool.map(lambda _: store.tokens.redeem(secret), range(8)))
    assert sum(token is not None for token in redeemed) == 1


def test_only_a_login_is_redeemed(store, ann, clock):
    assert store.tokens.redeem(issue(store, ann, "api")) is None
    assert store.tokens.redeem("rlhf_nope") is None
    secret = issue(store, ann, "login")
    clock.shift = 2 * DAY
    assert store.tokens.redeem(secret) is None


def test_disabled_user_cannot_redeem_a_login(store, ann):
    store.users.add(email="root@example.org", name="root", roles=[Role.ADMIN], actor="test")
    secret = issue(store, ann, "login")
    store.users.change(ann, disabled=True, actor="test")
    assert store.tokens.redeem(secret) is None


def test_token_use_is_recorded_once_a_minute(store, ann, clock):
    secret = issue(store, ann)
    store.tokens.find(secret)
    first = store.tokens.of_user(ann)[0].last_used_at
    clock.shift = timedelta(seconds=30)
    store.tokens.find(secret)
    assert store.tokens.of_user(ann)[0].last_used_at == first
    clock.shift = timedelta(seconds=90)
    store.tokens.find(secret)
    assert store.tokens.of_user(ann)[0].last_used_at > first


def test_token_needs_an_existing_user(store):
    with pytest.raises(NotFound, match="no user"):
        store.tokens.issue("nope", kind="api", lifetime=DAY, actor="test")


def test_lockout_doubles_after_ten_tries_until_success(store, clock):
    assert [store.failed_logins.attempt("ann") for _ in range(10)] == [0.0] * 10
    assert 29 < store.failed_logins.attempt("ann", "elsewhere") <= 30
    assert store.failed_logins.attempt("bob") == 0.0
    clock.shift = timedelta(seconds=31)
    assert store.failed_logins.attempt("ann") == 0.0
    assert 59 < store.failed_logins.wait_s("ann") <= 60
    store.failed_logins.forget("ann")
    assert store.failed_logins.wait_s("ann") == 0.0
    assert store.failed_logins.attempt("ann") == 0.0


def test_login_link_is_exchanged_once_in_one_transaction(store, ann):
    secret = issue(store, ann, "login")
    session, token = store.tokens.exchange(secret, lifetime=DAY)
    assert (token.kind, store.tokens.find(session).user_id) == ("session", ann)
    assert store.tokens.exchange(secret, lifetime=DAY) is None
    assert [link.action for link in store.audit.after(0, limit=10)][-2:] == [
        "tokens.redeem",
        "tokens.issue.session",
    ]


def test_locked_out_tries_take_no_write_lock(store):
    for _ in range(10):
        store.failed_logins.attempt("ann")
    with impatient(store) as web, store.database.write_transaction():
        assert web.failed_logins.attempt("ann") > 0
        with pytest.raises(StoreError):
            web.failed_logins.attempt("bob")


def test_concurrent_tries_are_counted_first(store):
    with ThreadPoolExecutor(16) as pool:
        waits = list(pool.map(lambda _: store.failed_logins.attempt("ann"), range(40)))
    assert sum(wait == 0 for wait in waits) == 10

"""A Postgres server that accepts everything and answers nothing: errors within seconds, nothing
doubled, no restart needed.
"""

import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime

import pytest
from sqlalchemy import make_url, text

from rlhf_pipeline.errors import StoreError
from rlhf_pipeline.store import Store
from tests.on_postgres.silent_proxy import SilentProxy

NOON = datetime(2026, 1, 1, 12, tzinfo=UTC)
SILENT_S = 0.2
# far below the minutes of a hung thread, far above the 3 s that this takes on a quiet machine
PATIENCE_S = 20


@pytest.fixture
def proxy(postgres) -> Iterator[SilentProxy]:
    with SilentProxy(postgres.port) as proxy:
        yield proxy


@pytest.fixture
def store(proxy, migrated_postgres_url) -> Iterator[Store]:
    """A store behind the proxy. libpq waits 2 s at least for a connection."""
    url = (
        make_url(migrated_postgres_url)
        .set(port=proxy.port)
        .update_query_dict({"connect_timeout": "2"})
    )
    with Store.open(
        url.render_as_string(hide_password=False),
        silent_s=SILENT_S,
    ) as store:
        yield store


def test_silent_server_ends_reads_and_votes_within_seconds(
    store, proxy, make_comparisons, make_vote
):
    store.comparisons.publish(make_comparisons(8), published_at=NOON)
    store.votes.cast(make_vote("c0"))
    proxy.hush()
    started = time.monotonic()
    with ThreadPoolExecutor(16) as pool:
        casting = [pool.submit(store.votes.cast, make_vote(f"c{i}")) for i in range(8)]
        reading = [pool.submit(store.votes.count) for _ in range(8)]
        errors = [done.exception() for done in (*casting, *reading)]
    assert time.monotonic() - started < PATIENCE_S
    assert {type(error) for error in errors} == {StoreError}
    assert all("no answer" in str(error) or "does not answer" in str(error) for error in errors), (
        errors
    )
    proxy.speak()
    again = [_until_answered(lambda i=i: store.votes.cast(make_vote(f"c{i}"))) for i in range(8)]
    assert store.votes.count() == len({vote.vote_id for vote in again}) == 8
    assert store.audit.verify() == 9


def test_silence_at_commit_leaves_no_half_vote(store, proxy, make_comparisons, make_vote):
    store.comparisons.publish(make_comparisons(1), published_at=NOON)
    with pytest.raises(StoreError, match="Whether the last transaction was kept is not known"):
        _write_until(store, proxy.hush)
    proxy.speak()
    vote = make_vote()
    assert _until_answered(lambda: store.votes.cast(vote)) == store.votes.cast(vote)
    assert store.audit.verify() == 2


def test_slow_statement_is_not_silence(store):
    with store.database.read_transaction() as connection:
        assert connection.execute(text("SELECT 1 FROM pg_sleep(0.5)")).scalar_one() == 1


def test_statement_limits_reach_the_server(store):
    with store.database.write_transaction() as connection:
        asked = (
            "SELECT current_setting('statement_timeout'), "
            "current_setting('idle_in_transaction_session_timeout')"
        )
        assert tuple(connection.execute(text(asked)).one()) == ("5min", "1min")


def test_connection_limit_of_a_role_is_named(postgres, migrated_postgres_url):
    postgres.execute("CREATE ROLE crowded LOGIN PASSWORD 'x' CONNECTION LIMIT 0")
    url = (
        make_url(migrated_postgres_url)
        .set(username="crowded", password="x")
        .render_as_string(hide_password=False)
    )
    try:
        with (
            Store.open(url) as store,
            pytest.raises(StoreError, match="no connection left"),
        ):
            store.votes.count()
    finally:
        postgres.execute("DROP ROLE crowded")


def _write_until(store, hush):
    with store.database.write_transaction() as connection:
        connection.execute(text("INSERT INTO heartbeats VALUES ('r', 1, 'h', 'j', now(), now())"))
        hush()


def _until_answered(act):
    deadline = time.monotonic() + PATIENCE_S
    while True:
        try:
            return act()
        except StoreError:
            assert time.monotonic() < deadline
            time.sleep(0.05)

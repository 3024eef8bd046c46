"""A full disk, a held lock, a bad path: each a StoreError with cause and cure, and the last state
intact.
"""

import threading
from pathlib import Path

import pytest
from sqlalchemy import event

from rlhf_pipeline.core.errors import StoreError
from rlhf_pipeline.store import Store
from rlhf_pipeline.store.faults import explain
from tests.unit.store.conftest import NOON
from tests.unit.store.databases import on_sqlite


@on_sqlite
def test_a_full_disk_is_named_and_keeps_the_last_state(
    url, store, make_comparisons, make_predictions, make_vote
):
    comparisons = make_comparisons(3000)
    store.comparisons.publish(comparisons.head(10), published_at=NOON)
    store.votes.cast(make_vote())
    with Store.open(url) as cramped:

        @event.listens_for(cramped.database.engine, "connect")
        def fill_the_disk(connection, record):
            (pages,) = connection.execute("PRAGMA page_count").fetchone()
            connection.execute(f"PRAGMA max_page_count={pages + 40}")

        with pytest.raises(StoreError, match="no space is left"):
            cramped.comparisons.publish(
                comparisons, make_predictions(comparisons), published_at=NOON
            )
        assert cramped.votes.count() == 1
    n_kept = store.comparisons.count()
    assert 10 <= n_kept < 3000
    store.audit.verify()
    assert store.comparisons.publish(comparisons, published_at=NOON).n_known == n_kept


def test_a_lock_held_too_long_is_named(url, store, make_comparisons):
    with Store.open(url, busy_timeout_s=0.1) as hurried:
        with store.database.write_transaction():
            with pytest.raises(
                StoreError,
                match=r"(database is locked|lock timeout): another process held the write lock",
            ):
                hurried.comparisons.publish(make_comparisons(1), published_at=NOON)
            assert hurried.comparisons.count() == 0  # readers do not wait
        assert hurried.comparisons.publish(make_comparisons(1), published_at=NOON).n_new == 1


def test_a_lock_held_by_another_thread_is_named(url, store):
    with Store.open(url, busy_timeout_s=0.1) as hurried:
        locked, release = threading.Event(), threading.Event()

        def hold() -> None:
            with hurried.database.write_transaction():
                locked.set()
                release.wait()

        thread = threading.Thread(target=hold)
        thread.start()
        locked.wait()
        with pytest.raises(StoreError, match="database is locked by another thread"):
            hurried.heartbeats.clear("run")
        release.set()
        thread.join()


def test_a_store_without_tables_asks_to_be_initialised(url):
    with (
        Store.open(url) as store,
        pytest.raises(StoreError, match="Run `rlhf init`"),
    ):
        store.votes.count()


@pytest.mark.skipif(
    not Path("/proc/version").exists(), reason="needs a folder nobody may write, here /proc"
)
def test_a_folder_that_cannot_be_written_is_named():
    with pytest.raises(StoreError, match="folder cannot be written"):
        Store.open("sqlite:////proc/store.db")


def test_invalid_database_file_is_named(tmp_path: Path):
    path = tmp_path / "store.db"
    path.write_text("these are not the rows you are looking for " * 40)
    with (
        Store.open(f"sqlite:///{path}") as store,
        pytest.raises(StoreError, match="not a database"),
    ):
        store.migrate()


@pytest.mark.parametrize(
    ("address", "why"),
    [
        ("sqlite://", "not an in-memory database"),
        ("sqlite:///:memory:", "not an in-memory database"),
        ("mysql://ann:secret@host/db", "names 'mysql', which cannot be used. Write postgresql://"),
        ("postgresql+foo://ann:secret@host/db", r"names 'postgresql\+foo', which cannot be used"),
        ("postgresql://ann:secret@host:port/db", "cannot be read. Write postgresql://"),
        ("nonsense", "cannot be read"),
    ],
)
def test_an_unusable_url_is_refused_without_its_password(address, why):
    with pytest.raises(StoreError, match=why) as refused:
        Store.open(address)
    assert "secret" not in str(refused.value)
    assert refused.value.__cause__ is None


@pytest.mark.parametrize("scheme", ["postgres", "postgresql", "postgresql+psycopg2"])
def test_a_postgres_url_needs_no_driver(scheme):
    with Store.open(f"{scheme}://ann:secret@host/db") as store:
        assert store.database.where == "postgresql+psycopg2://ann:***@host/db"


def test_a_password_in_the_query_of_a_url_is_not_shown():
    address = "postgresql:///db?host=/run/pg&user=ann&password=secret&sslpassword=secret"
    with Store.open(address) as store:
        assert store.database.where == "postgresql+psycopg2:///db?host=%2Frun%2Fpg&user=ann"


@pytest.mark.parametrize(
    ("message", "cure"),
    [
        ('FATAL:  too many connections for role "rlhf"', "no connection left"),
        ('FATAL:  too many connections for database "rlhf_store"', "no connection left"),
        ('FATAL:  role "rlhf" is not permitted to log in', "may not log in"),
        ('FATAL:  role "rlhf" does not exist', "no such user"),
        ('FATAL:  database "rlhf" does not exist', "create it with `createdb`"),
        ('relation "votes" does not exist', "Run `rlhf init`"),
        ("received invalid response to SSL negotiation: H", "another program than Postgres"),
        ("canceling statement due to statement timeout", "ran longer than the limit"),
        ("terminating connection due to idle-in-transaction timeout", "paused in the middle"),
    ],
)
def test_server_refusals_have_distinct_errors(message, cure):
    assert cure in explain(message)

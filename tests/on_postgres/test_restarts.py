"""A Postgres server that stops, crashes and comes back while votes are cast: clear errors, nothing
doubled, nothing lost.
"""

import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime

import pytest
from sqlalchemy import func, select, text

from rlhf_pipeline.core.errors import StoreError
from rlhf_pipeline.core.records import NewVote
from rlhf_pipeline.store import Store
from rlhf_pipeline.store.schema import votes
from tests.postgres import PostgresServer

pytestmark = pytest.mark.parametrize("dialect", ["postgres"])
NOON = datetime(2026, 1, 1, 12, tzinfo=UTC)
N_WRITERS, N_VOTES = 4, 60
PATIENCE_S = 180
UNDERSTOOD = (
    "the server ended the connection",
    "the server does not answer",
    "the server is starting",
    "recovering from a crash",
)


@pytest.fixture
def server(postgres: PostgresServer) -> Iterator[PostgresServer]:
    """The server, which runs again afterwards whatever a test did."""
    yield postgres
    if postgres.process is None:
        postgres.start()


class Voter:
    """Casts its votes one by one and, after an error, the same vote again, as a page or an import
    does.
    """

    def __init__(self, store: Store, mine: list[NewVote]):
        self.store = store
        self.mine = mine
        self.errors: list[str] = []

    def vote(self) -> None:
        deadline = time.monotonic() + PATIENCE_S
        for vote in self.mine:
            while not self._cast(vote):
                assert time.monotonic() < deadline, self.errors[-1]
                time.sleep(0.05)

    def _cast(self, vote: NewVote) -> bool:
        try:
            self.store.votes.cast(vote)
        except StoreError as error:
            self.errors.append(str(error))
            return False
        return True


@pytest.mark.parametrize("how", ["stop", "crash"])
def test_restart_under_load_loses_and_doubles_nothing(
    store, server, make_comparisons, make_vote, how
):
    store.comparisons.publish(make_comparisons(N_VOTES), published_at=NOON)
    voters = [
        Voter(store, [make_vote(f"c{i}", f"ann{n}") for i in range(N_VOTES)])
        for n in range(N_WRITERS)
    ]
    with ThreadPoolExecutor(N_WRITERS) as pool:
        casting = [pool.submit(voter.vote) for voter in voters]
        for n_cast in (20, 80):  # twice, in the middle of the work
            while store.votes.count() < n_cast:
                time.sleep(0.01)
            getattr(server, how)()
            time.sleep(0.2)
            server.start()
        for done in casting:
            done.result()
    errors = [error for voter in voters for error in voter.errors]
    assert errors, "the restarts met nobody"
    assert [error for error in errors if not any(words in error for words in UNDERSTOOD)] == []
    assert not any("p@ss" in error or "p%40ss" in error for error in errors)
    assert store.audit.verify() == N_WRITERS * N_VOTES + 1
    with store.database.read_transaction() as connection:
        n, n_keys, highest = (
            connection.execute(select(count)).scalar_one()
            for count in (
                func.count(votes.c.vote_id),
                func.count(votes.c.idempotency_key.distinct()),
                func.max(votes.c.seq),
            )
        )
    assert n == n_keys == highest == N_WRITERS * N_VOTES


def test_a_lock_held_by_another_process_is_named_with_its_cure(store, url):
    with (
        Store.open(url, busy_timeout_s=0.1) as hurried,
        store.database.write_transaction(),
        pytest.raises(
            StoreError, match=r"lock timeout: another process held the write lock.*pg_stat_activity"
        ),
    ):
        hurried.heartbeats.clear("run")


def test_readers_do_not_block_on_a_writer(store, make_comparisons):
    is_open, half = threading.Event(), threading.Event()

    def write() -> None:
        with store.database.write_transaction() as connection:
            connection.execute(
                text("INSERT INTO heartbeats VALUES ('r', 1, 'h', 'j', now(), now())")
            )
            half.set()
            is_open.wait(120)

    writer = threading.Thread(target=write)
    writer.start()
    half.wait(120)
    assert store.heartbeats.get("r") is None
    is_open.set()
    writer.join()
    assert store.heartbeats.get("r") is not None


def test_text_unfit_for_postgres_is_refused_by_name(store, make_comparisons, make_vote):
    store.comparisons.publish(make_comparisons(1), published_at=NOON)
    with pytest.raises(StoreError, match="NUL"):
        store.votes.cast(make_vote(reason="a\x00b"))
    assert store.votes.count() == 0

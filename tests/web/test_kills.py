"""kill -9 of the server at random moments while people vote: every answer of 201 is in the
database, the chain verifies, no half row.

Six kills in the suite; `KILLS=200 pytest tests/web/test_kills.py` is the whole of it.
"""

import http.client
import json
import os
import random
import threading
import time
import uuid
from pathlib import Path

import pytest
from sqlalchemy import func, select

from rlhf_pipeline.core.records import Role
from rlhf_pipeline.store import Store
from rlhf_pipeline.store.schema import audit, votes
from tests.web.served import Served, served

pytestmark = pytest.mark.timeout(3600)

KILLS = int(os.environ.get("KILLS", "4"))
VOTERS = 8


@pytest.fixture
def url(dialect: str, request: pytest.FixtureRequest, tmp_path: Path) -> str:
    if dialect == "sqlite":
        return f"sqlite:///{tmp_path / 'store.db'}"
    database_url: str = request.getfixturevalue("postgres_url")
    return database_url


class Voter(threading.Thread):
    """Votes as a page with an outbox does: what got no answer is sent again, with the same key."""

    def __init__(self, server: Served, token: str, ended: threading.Event):
        super().__init__(daemon=True)
        self.server = server
        self.headers = {"Authorization": f"Bearer {token}", "Content-Type": "application/json"}
        self.ended = ended
        self.answered: dict[str, str] = {}  # key -> vote id
        self.faults: list[str] = []
        self._connection: http.client.HTTPConnection | None = None

    def run(self) -> None:
        rng = random.Random(self.headers["Authorization"])
        while not self.ended.is_set():
            lease = self._post("cards:lease", {"n": 5}, None)
            for card in (lease or {}).get("cards", []):
                body = {
                    "card_id": card["card_id"],
                    "choice": rng.choice("ab"),
                    "strength": rng.randint(1, 4),
                    "reason": "so",
                }
                key = str(uuid.uuid4())
                answer = self._post("votes", body, key)
                if answer is not None:
                    self.answered[key] = answer["vote_id"]
            if lease is not None and not lease["cards"]:
                time.sleep(0.05)

    def _post(self, path: str, body: object, key: str | None) -> dict | None:
        """Until it is answered, or the test is over."""
        while not self.ended.is_set():
            try:
                if self._connection is None:
                    self._connection = http.client.HTTPConnection(
                        "127.0.0.1", self.server.port, timeout=30
                    )
                headers = self.headers | ({} if key is None else {"Idempotency-Key": key})
                self._connection.request(
                    "POST", f"/api/v1/{path}", json.dumps(body).encode(), headers
                )
                response = self._connection.getresponse()
                content = response.read()
            except (OSError, http.client.HTTPException):
                self._connection = None
                time.sleep(0.02)
                continue
            if response.status in (200, 201):
                return json.loads(content)
            if response.status != 503:
                self.faults.append(f"{path}: {response.status} {content.decode()[:300]}")
                return None
            time.sleep(0.02)
        return None


def test_killed_server_loses_no_acknowledged_vote(
    url: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    rng = random.Random(3)
    with served(url, tmp_path / "home") as server:
        server.furnish(3000 + 400 * KILLS, overlap=2)
        tokens = [server.token(f"a{n}@kill.test", Role.ANNOTATOR) for n in range(VOTERS)]
        ended = threading.Event()
        voters = [Voter(server, token, ended) for token in tokens]
        server.start()
        for voter in voters:
            voter.start()
        for _ in range(KILLS):
            # after so many more votes, not seconds: a kill on a busy machine hits votes too
            _await_answers(voters, rng.randint(1, 40))
            time.sleep(rng.uniform(0, 0.02))
            server.kill()
            with server.opened() as store:
                n_before = store.audit.verify()
            server.start()
        _await_answers(voters, 1)
        ended.set()
        for voter in voters:
            voter.join(60)
        server.kill()
        answered = {key: vote_id for voter in voters for key, vote_id in voter.answered.items()}
        assert [fault for voter in voters for fault in voter.faults] == []
        with server.opened() as store:
            n_links = store.audit.verify()
            assert n_links > n_before
            check(store, answered)
            where, n_rows = store.database.engine.dialect.name, store.votes.count()
    with capsys.disabled():
        print(
            f"\n{KILLS} kills -9 on {where}: {len(answered):,} votes answered with 201, all among "
            f"the {n_rows:,} whole rows; the chain of {n_links:,} links holds"
        )


def _await_answers(voters: list[Voter], n_more: int) -> None:
    n_wanted = sum(len(voter.answered) for voter in voters) + n_more
    until = time.monotonic() + 120
    while sum(len(voter.answered) for voter in voters) < n_wanted:
        assert time.monotonic() < until, f"{n_more} votes were not answered within 2 minutes"
        time.sleep(0.002)


def check(store: Store, answered: dict[str, str]) -> None:
    """Every answer stands for one whole row: vote, key, link."""
    with store.database.read_transaction() as connection:
        stored = set(connection.execute(select(votes.c.vote_id)).scalars())
        keys = {
            row.idempotency_key.rpartition("/")[2]: row.vote_id
            for row in connection.execute(select(votes))
        }
        linked = list(
            connection.execute(
                select(audit.c.object_id).where(audit.c.action == "vote.cast")
            ).scalars()
        )
        seqs = connection.execute(select(func.count(), func.max(votes.c.seq))).one()
        twice = (
            select(votes.c.card_id)
            .where(votes.c.card_id.is_not(None))
            .group_by(votes.c.card_id)
            .having(func.count() > 1)
        )
        doubled = list(connection.execute(twice).scalars())
    assert {key: keys.get(key) for key in answered} == answered
    assert set(answered.values()) <= stored
    assert sorted(linked) == sorted(stored)
    assert set(keys.values()) == stored
    assert seqs[0] == seqs[1] == len(stored)
    assert doubled == []

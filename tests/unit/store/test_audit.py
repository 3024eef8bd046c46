"""The chain finds what was changed, removed, added or cut, even past the triggers."""

import hashlib
import json

import pytest
from sqlalchemy import inspect, select, text

from rlhf_pipeline.core.api_types.filters import AuditFilter
from rlhf_pipeline.core.errors import StoreError
from rlhf_pipeline.core.records import content_hash
from rlhf_pipeline.store import Store
from rlhf_pipeline.store.schema import metadata, votes
from tests.unit.store.conftest import NOON, tamper
from tests.unit.store.databases import on_postgres

APPEND_ONLY = ["votes", "audit", "predictions"]


@pytest.fixture
def voted(store, make_comparisons, make_predictions, make_vote) -> Store:
    comparisons = make_comparisons(5)
    store.comparisons.publish(comparisons, make_predictions(comparisons), published_at=NOON)
    store.votes.cast_many([make_vote(f"c{i}") for i in range(5)])
    return store


def test_an_honest_chain_verifies(voted):
    assert voted.audit.verify() == voted.audit.count() == 7


def test_links_hash_canonical_json_of_vote_and_link(voted):
    (link, *_), _ = voted.audit.page(AuditFilter(action="vote.cast"))
    (vote, *_) = voted.votes.page(limit=1)
    with voted.database.read_transaction() as connection:
        row = connection.execute(select(votes).where(votes.c.vote_id == vote.vote_id)).mappings()
        assert link.payload_digest == content_hash(dict(row.one()))
    columns = link.model_dump(exclude={"hash"}) | {"at": link.at.isoformat()}
    canonical = json.dumps(columns, sort_keys=True, ensure_ascii=False, separators=(",", ":"))
    assert link.hash == hashlib.sha256(canonical.encode()).hexdigest()


@pytest.mark.parametrize("table", APPEND_ONLY)
@pytest.mark.parametrize("statement", ["UPDATE {} SET {} = {}", "DELETE FROM {}"])
def test_recorded_rows_cannot_be_changed_or_removed(voted, table, statement):
    column = metadata.tables[table].columns.keys()[0]
    with (
        pytest.raises(StoreError, match=f"{table} is append-only"),
        voted.database.write_transaction() as connection,
    ):
        connection.execute(text(statement.format(table, column, column)))
    assert voted.audit.verify() == 7


def test_recorded_row_cannot_be_replaced(voted):
    again = "INSERT OR REPLACE INTO audit SELECT * FROM audit WHERE seq = 3"
    if not voted.database.is_sqlite:
        again = (
            "INSERT INTO audit SELECT * FROM audit WHERE seq = 3 ON CONFLICT ON CONSTRAINT "
            "pk_audit DO UPDATE SET actor = 'eve'"
        )
    with (
        pytest.raises(StoreError, match="append-only"),
        voted.database.write_transaction() as connection,
    ):
        connection.execute(text(again))


@on_postgres
def test_recorded_table_cannot_be_emptied(voted):
    with (
        pytest.raises(StoreError, match="append-only"),
        voted.database.write_transaction() as connection,
    ):
        connection.execute(text("TRUNCATE votes"))
    assert voted.audit.verify() == 7


@pytest.mark.parametrize(
    ("statement", "seq"),
    [
        ("UPDATE audit SET actor = 'eve' WHERE seq = 4", 4),
        ("DELETE FROM audit WHERE seq = 4", 4),
        ("DELETE FROM audit WHERE seq > 5", 6),
        ("UPDATE votes SET choice = 'b' WHERE seq = 2", 4),
        ("UPDATE votes SET voted_at = '2026-01-01 12:00:00.000001' WHERE seq = 2", 4),
        ("DELETE FROM votes WHERE seq = 5", 7),
        ("UPDATE predictions SET p_raw = 0.9 WHERE comparison_id = 'c1'", 2),
        ("DELETE FROM predictions WHERE comparison_id = 'c1'", 2),
        ("UPDATE predictions SET link_seq = 4 WHERE comparison_id = 'c1'", 2),
    ],
)
def test_the_first_broken_seq_is_named(voted, statement, seq):
    tamper(voted, statement)
    with pytest.raises(StoreError, match=f"broken at seq {seq}:"):
        voted.audit.verify()


def test_vote_without_a_link_is_found(voted):
    new = ("seq", "vote_id", "idempotency_key", "pass_no")
    columns = ", ".join(row for row in _columns(voted) if row not in new)
    tamper(
        voted,
        f"INSERT INTO votes ({', '.join(new)}, {columns}) SELECT 6, 'fake', 'fake', 9, {columns} "
        "FROM votes WHERE seq = 1",
    )
    with pytest.raises(StoreError, match="6 are stored"):
        voted.audit.verify()


def test_long_chains_are_read_in_parts(voted, monkeypatch):
    monkeypatch.setattr("rlhf_pipeline.store.audit_chain.VERIFY_ROWS", 2)
    assert voted.audit.verify() == 7


def _columns(store: Store) -> list[str]:
    return [str(column["name"]) for column in inspect(store.database.engine).get_columns("votes")]

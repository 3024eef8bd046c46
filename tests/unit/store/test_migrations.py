"""A store gets the tables of schema.py; earlier ones are upgraded, all others refused."""

import sqlite3
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
from sqlalchemy import (
    CheckConstraint,
    Column,
    Index,
    MetaData,
    String,
    event,
    text,
)

from rlhf_pipeline.core.api_types.filters import ComparisonFilter
from rlhf_pipeline.core.errors import StoreError
from rlhf_pipeline.store import Store, migrations, schema
from rlhf_pipeline.store.schema import APPEND_ONLY, metadata
from tests.unit.store.conftest import NOON
from tests.unit.store.databases import on_postgres, on_sqlite


def test_migrating_again_changes_nothing(store):
    before = _rows(store)
    store.migrate()
    assert _rows(store) == before


def test_append_only_tables_refuse_changes_by_triggers(store):
    assert _triggers(store) == len(APPEND_ONLY) * (2 if store.database.is_sqlite else 1)


def test_concurrent_migrations_succeed(url):
    def migrate(_: int) -> int:
        with Store.open(url) as store:
            store.migrate()
            return store.votes.count()

    with ThreadPoolExecutor(8) as pool:
        assert list(pool.map(migrate, range(8))) == [0] * 8


@pytest.mark.parametrize(
    ("version", "cure"),
    [
        ("0020", "rlhf export votes.*rlhf import"),
        ("0-ffffffffffff", "rlhf export votes.*rlhf import"),
        ("99-ffffffffffff", "Install that version: `pip install --upgrade rlhf-pipeline`"),
    ],
)
def test_a_store_of_another_version_is_refused_and_unchanged(store, version, cure):
    with store.database.write_transaction() as connection:
        connection.execute(text("UPDATE alembic_version SET version_num = :to"), {"to": version})
    before = _rows(store)
    with pytest.raises(StoreError, match=f"schema {version}; .*{cure}"):
        store.migrate()
    assert migrations.read_version(store.database) == version
    assert _rows(store) == before


@pytest.mark.parametrize(
    "change",
    [
        lambda tables: tables["replays"].append_column(Column("more", String)),
        lambda tables: tables["votes"].append_constraint(CheckConstraint("seq > 0", name="seq")),
        lambda tables: Index("ix_replays_state", tables["replays"].c.state),
        lambda tables: tables["heartbeats"].metadata.remove(tables["heartbeats"]),
    ],
    ids=["column", "constraint", "index", "table"],
)
def test_each_change_of_the_tables_changes_their_fingerprint(change, monkeypatch):
    other = MetaData(naming_convention=metadata.naming_convention)
    for table in metadata.sorted_tables:
        table.to_metadata(other)
    monkeypatch.setattr(schema, "metadata", other)
    before = schema.fingerprint()
    change(other.tables)
    assert schema.fingerprint() != before


@on_sqlite
def test_sqlite_is_set_up_for_many_writers_and_power_cuts(store):
    with store.database.read_transaction() as connection:
        values = {
            name: connection.execute(text(f"PRAGMA {name}")).scalar()
            for name in ("journal_mode", "synchronous", "foreign_keys")
        }
        assert connection.execute(text("PRAGMA busy_timeout")).scalar() == 30_000
    assert values == {"journal_mode": "wal", "synchronous": 2, "foreign_keys": 1}


@on_postgres
def test_postgres_answers_in_utc_and_keeps_one_state_for_a_reader(store, make_comparisons):
    with store.database.read_transaction() as connection:
        assert connection.execute(text("SHOW timezone")).scalar() == "UTC"
        assert connection.execute(text("SHOW lock_timeout")).scalar() == "30s"
        # whatever the server's default is
        assert connection.execute(text("SHOW synchronous_commit")).scalar() == "on"
        count = text("SELECT count(*) FROM comparisons")
        assert connection.execute(count).scalar() == 0
        store.comparisons.publish(make_comparisons(3), published_at=NOON)
        assert connection.execute(count).scalar() == 0
    assert store.comparisons.count() == 3


def _plan(store: Store, ask: Callable[[], object]) -> list[str]:
    """How SQLite reads the last query of `ask`."""
    statements: list[tuple[str, Any]] = []
    event.listen(
        store.database.engine,
        "before_cursor_execute",
        lambda c, cursor, sql, values, *more: statements.append((sql, values)),
    )
    ask()
    raw = sqlite3.connect(str(store.database.path))
    steps = [
        step[3]
        for step in raw.execute(f"EXPLAIN QUERY PLAN {statements[-1][0]}", statements[-1][1])
    ]
    raw.close()
    return steps


def _rows(store: Store) -> dict[str, list[tuple]]:
    with store.database.read_transaction() as connection:
        return {
            name: [tuple(r) for r in connection.execute(table.select())]
            for name, table in metadata.tables.items()
        }


def _triggers(store: Store) -> int:
    where = (
        "sqlite_master WHERE type = 'trigger'"
        if store.database.is_sqlite
        else "pg_trigger WHERE NOT tgisinternal"
    )
    with store.database.read_transaction() as connection:
        return connection.execute(text(f"SELECT count(*) FROM {where}")).scalar_one()


@on_sqlite
@pytest.mark.parametrize("before", [None, ("2026-01-01", 3, "c3")])
def test_category_page_reads_only_its_comparisons(store, make_comparisons, before):
    """A rare one, or one that there is not, made the list read every comparison, texts and all."""
    store.comparisons.publish(make_comparisons(1), published_at=NOON)
    rare = ComparisonFilter(category="rare")
    plan = _plan(store, lambda: store.comparisons.page(rare, before=before))
    used = [step for step in plan if step.startswith(("SEARCH comparisons", "SCAN comparisons"))]
    assert used[0].startswith(
        "SEARCH comparisons USING INDEX ix_comparisons_category (category=?"
    ), plan
    assert not [step for step in plan if "ORDER BY" in step], plan

"""A store of 0.1.0 is upgraded in place, with its rows and its audit chain."""

import sqlite3
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
from alembic.operations import Operations
from sqlalchemy import Column, Connection, String, Text, inspect, text

from rlhf_pipeline.core.config import Settings
from rlhf_pipeline.core.errors import StoreError
from rlhf_pipeline.store import Store, migrations, schema
from rlhf_pipeline.store.database_copy import copy_tables
from rlhf_pipeline.store.schema_changes import CHANGES, SchemaChange, list_versions

TABLES = Path(__file__).parent / "tables_0_1_0"
BASE = list_versions()[0]


def make_old_sqlite(path: Path) -> None:
    path.parent.mkdir(exist_ok=True)
    with closing(sqlite3.connect(path)) as database:
        database.execute("PRAGMA journal_mode=WAL")
        database.executescript((TABLES / "sqlite.sql").read_text())


@pytest.fixture
def old(url: str, tmp_path: Path) -> Iterator[Store]:
    """A store of 0.1.0 with three votes, on the database of the test."""
    with Store.open(url) as store:
        if store.database.path is not None:
            make_old_sqlite(store.database.path)
        else:
            make_old_sqlite(tmp_path / "rows.db")
            driver = store.database.engine.raw_connection()
            with closing(driver):
                driver.cursor().execute((TABLES / "postgres.sql").read_text())
                driver.commit()
            copy_tables(f"sqlite:///{tmp_path / 'rows.db'}", url)
        yield store


def _describe(store: Store) -> dict[str, Any]:
    """Each table with all that reflection reads of it but comments, and the triggers."""
    with store.database.read_transaction() as connection:
        tables = {name: _describe_table(connection, name) for name in _list_tables(connection)}
        tables["triggers"] = _list_triggers(connection)
    return tables


def _list_tables(connection: Connection) -> list[str]:
    return inspect(connection).get_table_names()


def _describe_table(connection: Connection, name: str) -> dict[str, Any]:
    inspector = inspect(connection)
    parts: dict[str, Any] = {
        "columns": {
            column["name"]: (
                column["type"].compile(connection.dialect),
                column["nullable"],
                column["default"],
            )
            for column in inspector.get_columns(name)
        },
        "key": inspector.get_pk_constraint(name)["constrained_columns"],
    }
    for kind in ("foreign_keys", "unique_constraints", "check_constraints", "indexes"):
        rows = getattr(inspector, f"get_{kind}")(name)
        parts[kind] = sorted(str(_to_text(row)) for row in rows)
    return parts


def _to_text(value: Any) -> Any:
    """Conditions of partial indexes are objects, whose `repr` is their address."""
    if isinstance(value, dict):
        return sorted((key, _to_text(part)) for key, part in value.items() if key != "comment")
    return str(value)


def _list_triggers(connection: Connection) -> list[str]:
    where = (
        "SELECT name FROM sqlite_master WHERE type = 'trigger'"
        if connection.dialect.name == "sqlite"
        else "SELECT tgname FROM pg_trigger WHERE NOT tgisinternal"
    )
    return sorted(connection.execute(text(where)).scalars())


def _rows(store: Store) -> dict[str, list[tuple[Any, ...]]]:
    """The rows of 0.1.0's tables, by the columns that these have in schema.py."""
    with store.database.read_transaction() as connection:
        return {
            name: sorted((tuple(row) for row in connection.execute(table.select())), key=str)
            for name, table in schema.metadata.tables.items()
        }


def test_schema_is_0_1_0_and_the_changes_since():
    """Whoever changes schema.py adds a change, which upgrades the homes there are."""
    assert list_versions()[-1].partition("-")[2] == schema.fingerprint()


def test_upgraded_store_has_the_tables_of_a_new_one(old, dialect, tmp_path, request):
    migrations.upgrade(old.database)
    new_url = (
        f"sqlite:///{tmp_path / 'new' / 'store.db'}"
        if dialect == "sqlite"
        else request.getfixturevalue("migrated_postgres_url")
    )
    with Store.open(new_url) as new:
        new.migrate()
        assert _describe(old) == _describe(new)


def test_upgraded_store_keeps_its_rows_and_its_audit_chain(old):
    migrations.upgrade(old.database)
    assert old.audit.verify() == 8
    assert _read(old, "SELECT choice FROM votes ORDER BY seq") == ["a", "b", "tie"]


HELD_BY_A_BATCH = (
    "INSERT INTO generation_runs (run_id, asset, n_items, record, started_at) "
    "VALUES ('r', 'completions', 1, '{}', '2026-01-01 12:00:00')",
    "INSERT INTO generation_items (run_id, item_no, position, prompt_id, provider, model, "
    "sample_index, params, cache_key, state, owner, reserved, is_metered, is_cached, n_attempts, "
    "n_faults) VALUES ('r', 0, 0, 'p', 'api.example.org', 'm', 0, '{}', 'k', 'leased', 'b', 1, "
    "true, false, 0, 0)",
)


def test_items_that_a_batch_held_are_open(old):
    with old.database.write_transaction() as connection:
        for statement in HELD_BY_A_BATCH:
            connection.execute(text(statement))
    migrations.upgrade(old.database)
    assert _read(old, "SELECT state FROM generation_items") == ["open"]


def _add_languages(operations: Operations) -> None:
    """A table, a column whose table SQLite makes anew, and one of an append-only table."""
    operations.create_table("languages", Column("language", String, primary_key=True))
    operations.execute("INSERT INTO languages VALUES ('en')")
    operations.add_column(
        "comparisons", Column("language", String, nullable=False, server_default="en")
    )
    with operations.batch_alter_table("comparisons") as comparisons:
        comparisons.alter_column("language", server_default=None)
    operations.add_column("votes", Column("language", Text))
    operations.execute("UPDATE votes SET language = 'en'")


LATER = (*CHANGES, SchemaChange("keep the language", _add_languages, "f" * 12))


def _read(store: Store, query: str) -> list[Any]:
    with store.database.read_transaction() as connection:
        return list(connection.execute(text(query)).scalars())


def test_changes_apply_on_both_databases(old):
    before = _rows(old) if not CHANGES else None
    triggers = _describe(old)["triggers"]
    migrations.upgrade(old.database, LATER)
    assert migrations.read_version(old.database) == list_versions(LATER)[-1]
    if before is not None:
        assert _rows(old) == before
    assert old.audit.verify() == 8
    assert _read(old, "SELECT language FROM comparisons") == ["en"] * 3
    assert _read(old, "SELECT language FROM votes") == ["en"] * 3
    assert set(_describe(old)["triggers"]) >= set(triggers)
    for statement in ("DELETE FROM votes", "DELETE FROM comparisons"):
        with pytest.raises(StoreError), old.database.write_transaction() as connection:
            connection.execute(text(statement))


def test_sqlite_file_is_copied_before_its_upgrade(old, dialect):
    migrations.upgrade(old.database, LATER)
    copies = migrations.list_copies(old.database)
    if dialect == "postgres":
        assert copies == []
        return
    assert [copy.name for copy in copies] == ["store.db.before-1"]
    assert copies[0].stat().st_mode & 0o777 == 0o600
    with Store.open_read_only(f"sqlite:///{copies[0]}") as copy:
        assert migrations.read_version(copy.database) == BASE
        assert _read(copy, "SELECT choice FROM votes ORDER BY seq") == ["a", "b", "tie"]
    migrations.upgrade(old.database, LATER)
    assert migrations.list_copies(old.database) == copies
    assert len(_read(old, "SELECT idx FROM sqlite_stat1")) == len(migrations.STATISTICS)


def _break(operations: Operations) -> None:
    operations.create_table("languages", Column("language", String, primary_key=True))
    operations.execute("DELETE FROM comparisons")  # that votes refer to


def test_failed_upgrade_leaves_the_store_unchanged(old):
    before = _describe(old)
    with pytest.raises(StoreError, match=r"refer|foreign key"):
        migrations.upgrade(old.database, (*CHANGES, SchemaChange("fail", _break, "f" * 12)))
    assert _describe(old) == before
    assert migrations.read_version(old.database) == BASE
    assert _read(old, "SELECT choice FROM votes ORDER BY seq") == ["a", "b", "tie"]


def test_many_may_upgrade_at_once_and_one_does(old, url):
    calls = []

    def apply(operations: Operations) -> None:
        calls.append(operations)
        _add_languages(operations)

    changes = (*CHANGES, SchemaChange("keep the language", apply, "f" * 12))

    def upgrade(_: int) -> str | None:
        with Store.open(url) as store:
            migrations.upgrade(store.database, changes)
            return migrations.read_version(store.database)

    with ThreadPoolExecutor(8) as pool:
        assert set(pool.map(upgrade, range(8))) == {list_versions(changes)[-1]}
    assert len(calls) == 1


def test_only_opening_a_home_upgrades_it(tmp_path):
    make_old_sqlite(tmp_path / "home" / "store.db")
    with Store.open_read_only(f"sqlite:///{tmp_path / 'home' / 'store.db'}") as store:
        version = migrations.read_version(store.database)
        cure = migrations.describe_other(store.database.where, version, LATER)
    assert version == BASE
    assert "an earlier version (schema 0-" in cure
    assert "run `rlhf status`" in cure
    with Store.of_home(Settings(home=tmp_path / "home")) as store:
        assert migrations.read_version(store.database) == migrations.HEAD
        with store.database.write_transaction() as connection:
            connection.execute(text("UPDATE alembic_version SET version_num = '99-f'"))
    with pytest.raises(StoreError, match="a later version"):
        Store.of_home(Settings(home=tmp_path / "home"))


def test_opening_an_empty_home_makes_no_store(tmp_path):
    Store.of_home(Settings(home=tmp_path)).close()
    assert not (tmp_path / "store.db").exists()

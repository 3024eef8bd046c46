"""Databases copied to Postgres and dumped: equal hashes, whole or not at all, and what cannot be
kept named by row.
"""

import gzip
import multiprocessing
import os
import random
import signal
import sqlite3
import time
from contextlib import closing
from datetime import UTC, datetime
from pathlib import Path

import pytest
from sqlalchemy import text

from rlhf_pipeline.errors import StoreError
from rlhf_pipeline.store import Store, database_copy, database_dump, integrity, migrations
from rlhf_pipeline.votes.counting import counting

NOON = datetime(2026, 1, 1, 12, tzinfo=UTC)
FORK = multiprocessing.get_context("fork")

# Every kind of column that Dagster and MLflow use, with the values that a text format gets wrong.
ODD_TABLE = """CREATE TABLE odd (
  id INTEGER PRIMARY KEY, name VARCHAR(40), flag BOOLEAN, amount FLOAT, at TIMESTAMP, body BLOB, \
doc JSON,
  twice INTEGER GENERATED ALWAYS AS (id * 2) {stored})"""
ODD_ROWS = [
    (
        1,
        "tab\there",
        True,
        0.1,
        "2026-01-01 12:00:00.000001",
        b"\x00\xff",
        '{"b": [1, null], "a": "x"}',
    ),
    (2, "line\nbreak \\N \\. \r", False, -1e300, "2026-01-01 12:00:00", b"", '"text"'),
    (7, "", None, None, None, None, None),
    (9, None, None, 5, None, None, "{}"),
]


@pytest.fixture
def url(tmp_path: Path) -> str:
    """Copies go from SQLite to Postgres."""
    return f"sqlite:///{tmp_path / 'state' / 'store.db'}"


@pytest.fixture
def filled(store, make_comparisons, make_predictions, make_vote) -> Store:
    comparisons = make_comparisons(40)
    store.comparisons.publish(
        comparisons, make_predictions(comparisons, 0.1 + 0.2), published_at=NOON
    )
    store.votes.cast_many(
        [make_vote(f"c{i}", reason=f"tab\t{i}\nline \\N — ü", duration_s=i / 7) for i in range(40)]
    )
    store.heartbeats.beat("run", pid=1, host="h", job="j")
    return store


def odd_database(path: Path) -> str:
    with closing(sqlite3.connect(path)) as connection:
        connection.execute(ODD_TABLE.format(stored="VIRTUAL"))
        connection.executemany(
            "INSERT INTO odd (id, name, flag, amount, at, body, doc) VALUES (?, ?, ?, ?, ?, ?, ?)",
            ODD_ROWS,
        )
        connection.commit()
    return f"sqlite:///{path}"


def make_odd_on_postgres(url: str) -> None:
    engine = database_copy.engine_of(url)
    with engine.begin() as connection:
        connection.execute(
            text(
                ODD_TABLE.format(stored="STORED")
                .replace("INTEGER PRIMARY", "SERIAL PRIMARY")
                .replace("BLOB", "BYTEA")
            )
        )
    engine.dispose()


def test_a_store_arrives_with_equal_counts_hashes_and_chain(filled, url, migrated_postgres_url):
    tables = database_copy.copy_store(url, migrated_postgres_url)
    assert all(table.is_equal for table in tables), [t for t in tables if not t.is_equal]
    assert {t.table: t.n_target for t in tables}["votes"] == 40
    with Store.open(migrated_postgres_url, organization="org", project="demo") as there:
        assert there.audit.verify() == filled.audit.verify()
        assert counting(there.votes.log(["2026-01-01"])).equals(
            counting(filled.votes.log(["2026-01-01"]))
        )
        assert there.predictions.for_days(["2026-01-01"]).equals(
            filled.predictions.for_days(["2026-01-01"])
        )
        assert integrity.count_rows(there.database) == integrity.count_rows(filled.database)
        assert integrity.find_orphans(there.database) == []


def counted(url: str) -> dict[str, int]:
    """How many rows Postgres believes each table to have; -1 where it never counted."""
    engine = database_copy.engine_of(url)
    with engine.connect() as connection:
        rows = connection.execute(
            text(
                "SELECT relname, reltuples FROM pg_class WHERE relkind = 'r' AND relnamespace = "
                "'public'::regnamespace"
            )
        )
        found = {name: int(n) for name, n in rows}
        known = connection.execute(
            text("SELECT count(*) FROM pg_stats WHERE tablename = 'votes'")
        ).scalar_one()
    engine.dispose()
    return found | {"columns of votes known": known}


def test_postgres_is_analysed_after_a_copy(
    filled, url, tmp_path, migrated_postgres_url, postgres, migrated_postgres
):
    assert counted(migrated_postgres_url)["votes"] <= 0
    database_copy.copy_store(url, migrated_postgres_url)
    copied = counted(migrated_postgres_url)
    assert (copied["votes"], copied["comparisons"], copied["predictions"]) == (40, 40, 40)
    assert copied["columns of votes known"] > 10
    assert -1 not in copied.values()

    dumped = [
        t
        for t in database_dump.dump_postgres(migrated_postgres_url, tmp_path / "dump")
        if t.table not in database_copy.VERSIONS
    ]
    other = postgres.make_database(migrated_postgres)
    try:
        database_dump.load_postgres(postgres.database_url(other), tmp_path / "dump", dumped)
        assert counted(postgres.database_url(other)) == copied
    finally:
        postgres.drop_database(other)


def test_every_kind_of_value_arrives_as_it_was(tmp_path, postgres_url):
    source = odd_database(tmp_path / "odd.db")
    make_odd_on_postgres(postgres_url)
    (table,) = database_copy.copy_database("odd", source, postgres_url)
    assert table.is_equal
    engine = database_copy.engine_of(postgres_url)
    with engine.begin() as connection:
        rows = connection.execute(
            text("SELECT id, name, flag, amount, body, doc, twice FROM odd ORDER BY id")
        ).all()
        assert (rows[0].name, rows[0].flag, rows[0].amount, bytes(rows[0].body)) == (
            "tab\there",
            True,
            0.1,
            b"\x00\xff",
        )
        assert (rows[0].doc, rows[1].doc, rows[0].twice) == ({"b": [1, None], "a": "x"}, "text", 2)
        assert [rows[1].name, rows[2].name, rows[3].name] == ["line\nbreak \\N \\. \r", "", None]
        # The next row gets a number that no copied one has.
        assert (
            connection.execute(text("INSERT INTO odd (name) VALUES ('new') RETURNING id")).scalar()
            == 10
        )
    engine.dispose()


def test_a_changed_row_is_seen_in_the_hash(tmp_path, postgres_url):
    source = odd_database(tmp_path / "odd.db")
    make_odd_on_postgres(postgres_url)
    database_copy.copy_database("odd", source, postgres_url)
    engine = database_copy.engine_of(postgres_url)
    with engine.begin() as connection:
        connection.execute(text("UPDATE odd SET amount = amount + 1e-12 WHERE id = 1"))
        tables = database_copy.MetaData()
        tables.reflect(connection)
    before = database_copy.TableHash()
    for row in ODD_ROWS:
        before.add(row)
    assert database_copy.hash_of(engine, tables.tables["odd"]).hex != before.hex
    engine.dispose()


def test_the_hash_of_a_table_does_not_know_the_order_but_the_number():
    def hash_of(rows: list[tuple[int, str]]) -> str:
        found = database_copy.TableHash()
        for row in rows:
            found.add(row)
        return found.hex

    rows = [(1, "a"), (2, "b"), (3, "c")]
    assert hash_of(rows) == hash_of(rows[::-1])
    assert hash_of(rows) != hash_of([*rows, rows[0]])
    assert hash_of(rows) != hash_of([(1, "b"), (2, "a"), (3, "c")])


def test_rows_without_a_place_in_the_target_are_named(tmp_path, postgres_url):
    source = odd_database(tmp_path / "odd.db")
    with pytest.raises(StoreError, match=r"holds rows of odd, for which .* has no table"):
        database_copy.copy_database("odd", source, postgres_url)


def test_a_row_that_postgres_cannot_keep_is_named_and_nothing_is_copied(
    filled, url, migrated_postgres_url, make_vote
):
    filled.votes.cast(make_vote("c1", "other"))
    # as stores did before they refused NUL
    with closing(sqlite3.connect(filled.database.path)) as connection:
        connection.execute("DROP TRIGGER votes_refuse_update")
        connection.execute("UPDATE votes SET reason = 'nul ' || char(0) || ' byte' WHERE seq = 41")
        connection.commit()
    with pytest.raises(StoreError, match=r"votes: .*seq=41.* holds a NUL character"):
        database_copy.copy_store(url, migrated_postgres_url)
    assert set(database_copy.n_rows(migrated_postgres_url).values()) == {0}


def test_a_killed_copy_leaves_nothing_and_may_be_repeated(
    filled, url, migrated_postgres_url, monkeypatch
):
    monkeypatch.setattr(database_copy, "ROWS", 1)  # as slow as can be
    moments = random.Random(7)
    killed = 0
    for _ in range(6):
        process = FORK.Process(target=database_copy.copy_store, args=(url, migrated_postgres_url))
        process.start()
        time.sleep(moments.uniform(0.02, 0.2))
        if process.is_alive():
            os.kill(process.pid, signal.SIGKILL)
            killed += 1
        process.join()
        assert sum(database_copy.n_rows(migrated_postgres_url).values()) in (
            0,
            sum(database_copy.n_rows(url).values()),
        )
        if sum(database_copy.n_rows(migrated_postgres_url).values()):
            break
    assert killed > 0
    database_copy.drop_all_tables(migrated_postgres_url)
    with Store.open(migrated_postgres_url, organization="org", project="demo") as there:
        there.migrate()
    assert all(table.is_equal for table in database_copy.copy_store(url, migrated_postgres_url))


def test_a_sealed_store_tells_writers_its_new_address(filled, make_vote):
    with database_copy.pause_writes(filled.database) as seal:
        seal("postgresql://somebody's server")
    with pytest.raises(
        StoreError,
        match="this store was moved to postgresql://somebody's server: its rows are there now",
    ):
        filled.votes.cast(make_vote("c1", "late"))
    assert filled.votes.count() == 40  # and readers read
    migrations.upgrade(filled.database)


def test_a_dump_comes_back_as_it_was(
    filled, url, tmp_path, migrated_postgres_url, postgres, migrated_postgres
):
    database_copy.copy_store(url, migrated_postgres_url)
    dumped = database_dump.dump_postgres(migrated_postgres_url, tmp_path / "dump")
    assert {table.table: table.n_rows for table in dumped}["votes"] == 40
    other = postgres.make_database(migrated_postgres)
    try:
        rows = [table for table in dumped if table.table not in database_copy.VERSIONS]
        database_dump.load_postgres(postgres.database_url(other), tmp_path / "dump", rows)
        with Store.open(postgres.database_url(other), organization="org", project="demo") as there:
            assert there.audit.verify() == filled.audit.verify()
    finally:
        postgres.drop_database(other)


def test_a_dump_that_lost_rows_is_refused_and_nothing_is_loaded(
    filled, url, tmp_path, migrated_postgres_url, postgres, migrated_postgres
):
    database_copy.copy_store(url, migrated_postgres_url)
    dumped = [
        table
        for table in database_dump.dump_postgres(migrated_postgres_url, tmp_path)
        if table.table not in database_copy.VERSIONS
    ]
    file = tmp_path / "votes.csv.gz"
    lines = gzip.decompress(file.read_bytes()).splitlines(keepends=True)
    file.write_bytes(gzip.compress(b"".join(lines[:2])))
    other = postgres.make_database(migrated_postgres)
    try:
        with pytest.raises(StoreError, match=r"votes\.csv\.gz|unterminated"):
            database_dump.load_postgres(postgres.database_url(other), tmp_path, dumped)
        assert set(database_copy.n_rows(postgres.database_url(other)).values()) == {0}
    finally:
        postgres.drop_database(other)


def test_paths_of_a_home_that_moved_follow_it(tmp_path):
    file = tmp_path / "mlflow.db"
    with closing(sqlite3.connect(file)) as connection:
        connection.execute("CREATE TABLE runs (id INTEGER, artifact_uri VARCHAR, name TEXT)")
        connection.execute(
            "INSERT INTO runs VALUES (1, 'file:///old/home/mlflow/x', 'file:///old/homely'), (2, "
            "NULL, '100%')"
        )
        connection.commit()
    assert database_copy.relocate(f"sqlite:///{file}", "file:///old/home/", "file:///new/") == 1
    with closing(sqlite3.connect(file)) as connection:
        assert connection.execute("SELECT * FROM runs").fetchall() == [
            (1, "file:///new/mlflow/x", "file:///old/homely"),
            (2, None, "100%"),
        ]

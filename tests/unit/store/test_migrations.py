"""The migrations end where schema.py stands, and the way up and down keeps the rows."""

import hashlib
import sqlite3
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime, timedelta
from functools import partial
from typing import Any

import pytest
from alembic.autogenerate import compare_metadata
from alembic.runtime.migration import MigrationContext
from alembic.script import ScriptDirectory
from sqlalchemy import create_engine, event, inspect, text

from rlhf_pipeline.errors import StoreError
from rlhf_pipeline.records import AnnotationRules, NewFeedback, Role, TriggerDecision, VoteDetails
from rlhf_pipeline.store import Store, migrations
from rlhf_pipeline.store.schema import SCOPE, metadata
from tests.unit.store.databases import on_postgres, on_sqlite

NOON = datetime(2026, 1, 1, 12, tzinfo=UTC)


def test_the_head_is_the_newest_version():
    assert ScriptDirectory(str(migrations.FOLDER)).get_heads() == [migrations.HEAD]


def test_schema_and_head_migration_are_the_same(store):
    with store.database.read_transaction() as connection:
        assert (
            compare_metadata(
                MigrationContext.configure(connection, opts={"compare_type": True}), metadata
            )
            == []
        )


@on_sqlite
def test_schema_and_head_migration_agree_on_every_constraint_of_sqlite(store, tmp_path):
    engine = create_engine(f"sqlite:///{tmp_path / 'direct.db'}")
    metadata.create_all(engine)
    with engine.connect() as direct, store.database.read_transaction() as migrated:
        assert _definitions(direct) == _definitions(migrated)


@on_postgres
def test_schema_and_head_migration_agree_on_every_constraint_of_postgres(store, postgres_url):
    engine = create_engine(postgres_url)
    metadata.create_all(engine)
    with engine.connect() as direct, store.database.read_transaction() as migrated:
        assert _constraints(direct) == _constraints(migrated)
    engine.dispose()


def test_every_table_says_whose_row_it_is(store):
    inspector = inspect(store.database.engine)
    tables = set(inspector.get_table_names()) - {"alembic_version"}
    assert tables == set(metadata.tables)
    for table in tables:
        assert tuple(c["name"] for c in inspector.get_columns(table)[:2]) == SCOPE


def test_migrating_again_changes_nothing(store):
    before = _rows(store)
    store.migrate()
    assert _rows(store) == before


def test_down_and_up_with_data_keeps_every_row(
    store, make_comparisons, make_predictions, make_vote
):
    comparisons = make_comparisons(4)
    store.comparisons.publish(comparisons, make_predictions(comparisons), published_at=NOON)
    store.votes.cast_many([make_vote(f"c{i}") for i in range(4)])
    before, n_triggers = _rows(store), _triggers(store)
    assert n_triggers == (12 if store.database.is_sqlite else 6)
    migrations.downgrade(store.database, "0001")
    assert migrations.current_revision(store.database) == "0001"
    assert _triggers(store) == 0
    store.migrate()
    assert _rows(store) == before
    assert _triggers(store) == n_triggers
    assert store.audit.verify() == 6


def test_down_and_up_with_data_keeps_counts_and_hashes_of_every_table(store, fill, capsys):
    """To every earlier version and back, with rows in every table.

    Hashes of files are forgotten on purpose: an older program replaces files without recording
    them.
    """
    fill()
    n_links, head, before, n_triggers = (
        store.audit.verify(),
        store.audit.head(),
        _sums(store),
        _triggers(store),
    )
    assert [table for table in before if not before[table][0]] == []
    store.file_hashes.forget([OTHERS["files"]["path"]])
    before = _sums(store)
    for version in (
        "0011",
        "0010",
        "0009",
        "0008",
        "0007",
        "0006",
        "0005",
        "0004",
        "0003",
        "0002",
        "0001",
    ):
        migrations.downgrade(store.database, version)
        assert migrations.current_revision(store.database) == version
        store.migrate()
        after = _sums(store)
        assert after == before, version
        assert (store.audit.head(), store.audit.verify(), _triggers(store)) == (
            head,
            n_links,
            n_triggers,
        )
        assert set(inspect(store.database.engine).get_table_names()) == {
            *metadata.tables,
            "alembic_version",
        }, "nothing is left aside"
    with capsys.disabled():
        print(
            f"\ndown to 0010 … 0001 and up on {store.database.engine.dialect.name}, rows and "
            "SHA-256 before | after"
        )
        for table in sorted(before):
            (n, digest), (n_after, digest_after) = before[table], after[table]
            print(f"  {table:<18}{n:>4} {digest[:12]} | {n_after:>4} {digest_after[:12]}")


PEOPLE: dict[str, Callable[..., object]] = {
    "slots": lambda store, vote: store.assignments.offer(["c0", "c1", "c2"], overlap=1),
    "named": lambda store, vote: store.assignments.ask("somebody new", ["c2"], actor="test"),
    "organisation": lambda store, vote: store.users.add(
        email="boss@example.org",
        name="Boss",
        roles=[Role.CURATOR],
        organization_roles=[Role.AUDITOR],
        actor="test",
    ),
    "users": lambda store, vote: store.users.add(
        email="ann@example.org", name="Ann", roles=[Role.ADMIN], actor="test"
    ),
    "guidelines": lambda store, vote: store.guidelines.add("Be kind.", after=0, actor="test"),
    "rules": lambda store, vote: store.rules.put(AnnotationRules(overlap=2), after=0, actor="test"),
    "thumbs": lambda store, vote: store.feedback.add(
        NewFeedback(kind="thumbs", value=1, completion_id="x"), created_by="app"
    ),
    "correction": lambda store, vote: store.feedback.add(
        NewFeedback(
            kind="correction", prompt="2+2?", completion="5", correction="4", session_id="s"
        ),
        created_by="app",
    ),
    "guideline_version": lambda store, vote: store.votes.cast(vote(guideline_version=1)),
    "is_swapped": lambda store, vote: store.votes.cast(vote(is_swapped=False)),
    "details": lambda store, vote: store.votes.cast(vote(details=VoteDetails(flags=("pii",)))),
    "cards": lambda store, vote: _deal(store),
}


@pytest.mark.parametrize("write", PEOPLE.values(), ids=PEOPLE)
def test_what_people_are_and_said_is_put_aside_for_an_older_version_and_given_back(
    store, make_comparisons, make_vote, write
):
    store.comparisons.publish(make_comparisons(), published_at=NOON)
    write(store, make_vote)
    before, n_links, n_triggers = _sums(store), store.audit.verify(), _triggers(store)
    migrations.downgrade(store.database, "0006")
    with (
        store.database.write_transaction() as connection
    ):  # what only the older version knows goes on
        connection.execute(text("UPDATE comparisons SET category = category"))
    store.migrate()
    assert (_sums(store), store.audit.verify(), _triggers(store)) == (before, n_links, n_triggers)
    store.votes.cast(make_vote("c1"))


@pytest.mark.parametrize("write", PEOPLE.values(), ids=PEOPLE)
def test_base_drops_nothing_that_no_older_version_holds(store, make_comparisons, make_vote, write):
    store.comparisons.publish(make_comparisons(), published_at=NOON)
    write(store, make_vote)
    before = _sums(store)
    with pytest.raises(
        StoreError,
        match=r"to base drops .* no older version holds: [1-9].* rows of .*Nothing was "
        r"changed.*down to 0001",
    ):
        migrations.downgrade(store.database, "base")
    assert migrations.current_revision(store.database) == migrations.HEAD
    assert _sums(store) == before


def test_a_vote_cast_by_an_older_version_stays_beside_what_is_given_back(
    store, make_comparisons, make_vote
):
    store.comparisons.publish(make_comparisons(), published_at=NOON)
    swapped = store.votes.cast(make_vote(is_swapped=True))
    migrations.downgrade(store.database, "0006")
    columns = ", ".join(c["name"] for c in inspect(store.database.engine).get_columns("votes"))
    changed = {
        "seq": "seq + 1",
        "vote_id": "'later'",
        "comparison_id": "'c1'",
        "idempotency_key": "'later'",
    }
    copied = ", ".join(changed.get(name, name) for name in columns.split(", "))
    with store.database.write_transaction() as connection:
        connection.execute(text(f"INSERT INTO votes ({columns}) SELECT {copied} FROM votes"))
    store.migrate()
    with store.database.read_transaction() as connection:
        found = dict(
            connection.execute(text("SELECT vote_id, is_swapped FROM votes")).tuples().all()
        )
    assert (bool(found[swapped.vote_id]), found["later"]) == (True, None)


IMPORTED: dict[str, Callable[..., object]] = {
    "imports": lambda store, comparisons, vote: _insert(store, "imports"),
    "replays": lambda store, comparisons, vote: _insert(store, "replays"),
    "where it came from": lambda store, comparisons, vote: store.comparisons.publish(
        comparisons(3, prefix="i").assign(source="elsewhere", gold="a"), published_at=NOON
    ),
    "task": lambda store, comparisons, vote: store.votes.cast(vote(task_id="t")),
}


@pytest.mark.parametrize("write", IMPORTED.values(), ids=IMPORTED)
@pytest.mark.parametrize("version", ["0003", "0001"])
def test_what_was_imported_is_put_aside_for_an_older_version_and_given_back(
    store, make_comparisons, make_vote, write, version
):
    store.comparisons.publish(make_comparisons(), published_at=NOON)
    write(store, make_comparisons, make_vote)
    before, n_links = _sums(store), store.audit.verify()
    migrations.downgrade(store.database, version)
    store.migrate()
    assert (_sums(store), store.audit.verify()) == (before, n_links)


def test_votes_without_a_time_are_refused_by_an_older_version_and_kept(
    store, make_comparisons, make_vote
):
    """One that was made up would be read as true."""
    store.comparisons.publish(make_comparisons(), published_at=NOON)
    store.votes.cast(make_vote(voted_at=None, origin="import"))
    before = _sums(store)
    with pytest.raises(
        StoreError,
        match=r"0003 cannot hold .*since: 1 votes without a time\. Nothing was changed.*`rlhf "
        r"export votes`",
    ):
        migrations.downgrade(store.database, "0001")
    assert migrations.current_revision(store.database) == migrations.HEAD
    assert _sums(store) == before


def _insert(store: Store, table: str) -> None:
    with store.database.write_transaction() as connection:
        store.database.insert(connection, metadata.tables[table], [OTHERS[table]])


def _deal(store: Store) -> None:
    store.assignments.offer(["c0"], overlap=1)
    assert store.assignments.deal("ann", 1, AnnotationRules())


@pytest.fixture
def fill(store, make_comparisons, make_predictions, make_vote, make_event):
    """Rows in every table."""

    def write() -> None:
        comparisons = make_comparisons(6)
        store.comparisons.publish(comparisons, make_predictions(comparisons), published_at=NOON)
        first, *_ = store.votes.cast_many(
            [make_vote(f"c{i}", reason="shorter — ü", stated_confidence=0.5) for i in range(4)]
        )
        store.votes.cast(
            make_vote(choice="b", strength=3, supersedes=first.vote_id, idempotency_key="changed")
        )
        store.votes.cast(make_vote("c1", choice="skip", idempotency_key="a second pass"))
        store.events.add([make_event(2)])
        store.decisions.decide(
            lambda e: TriggerDecision(
                action="fire", reasons=("test",), event_ids=(), change_seq=2, decided_at=e.now
            ),
            now=NOON,
            champion="m",
        )
        store.completions_cache.put_many({"k": "text"})
        store.heartbeats.beat("run-1", pid=1, host="h", job="retraining")
        store.comparisons.publish(
            make_comparisons(3, prefix="i").assign(source="elsewhere", gold="a"), published_at=NOON
        )
        store.votes.cast(make_vote("i0", task_id="t"))
        for table in OTHERS:
            _insert(store, table)
        for name in PEOPLE.keys() - {"cards"}:
            PEOPLE[name](store, partial(make_vote, "c5", annotator_id=name))
        assert store.assignments.deal("somebody", 1, AnnotationRules())
        store.tokens.issue(
            store.users.all()[0].user_id, kind="api", lifetime=timedelta(days=1), actor="test"
        )

    return write


# Nobody reads these rows here; the migrations must.
OTHERS: dict[str, dict[str, Any]] = {
    "detector_states": {
        "model_version": "m",
        "stream": "errors",
        "detector": "ddm",
        "last_seq": 2,
        "state": "{}",
        "saved_at": NOON,
    },
    "promotions": {
        "promotion_id": 1,
        "model_name": "policy",
        "version": 1,
        "promoted_at": NOON,
        "record": "{}",
    },
    "files": {
        "path": "frames/votes.parquet",
        "sha256": "0" * 64,
        "size": 7,
        "state": "written",
        "written_at": NOON,
    },
    "gates": {"gate_id": 1, "candidate": "policy@2", "decided_at": NOON, "record": "{}"},
    "calibrations": {
        "reward_model": "m",
        "version": 1,
        "fitted_at": NOON,
        "report": "{}",
        "calibrator": "{}",
    },
    "imports": {
        "import_id": 1,
        "kind": "votes",
        "file": "f",
        "state": "finished",
        "started_at": NOON,
        "finished_at": NOON,
        "record": "{}",
    },
    "replays": {
        "day": "2026-01-01",
        "state": "done",
        "asked_at": NOON,
        "done_at": NOON,
        "leased_for": None,
        "leased_until": None,
    },
    "failed_logins": {"who": "w", "n_failed": 1, "last_failed_at": NOON},
    "requests": {
        "principal": "ann",
        "idempotency_key": "k",
        "request_hash": "h",
        "status": 201,
        "answer": "{}",
        "started_at": NOON,
        "expires_at": NOON,
    },
    "generation_runs": {
        "run_id": "r",
        "asset": "completions",
        "n_items": 1,
        "record": "{}",
        "origin": None,
        "started_at": NOON,
        "ended_at": NOON,
        "parked_until": NOON,
        "parked_why": "asked to wait — ü",
    },
    "generation_items": {
        "run_id": "r",
        "item_no": 0,
        "position": 0,
        "prompt_id": "p",
        "provider": "acme",
        "model": "m",
        "sample_index": 0,
        "params": "{}",
        "cache_key": "k",
        "state": "failed",
        "owner": None,
        "leased_until": None,
        "not_before": NOON,
        "reserved": 7,
        "is_metered": True,
        "is_cached": False,
        "n_attempts": 1,
        "n_faults": 1,
        "kind": "timeout",
        "error": "e",
        "settled_at": NOON,
    },
    "generation_attempts": {
        "run_id": "r",
        "item_no": 0,
        "attempt_no": 1,
        "provider": "acme",
        "model": "m",
        "started_at": NOON,
        "latency_ms": 12.5,
        "outcome": "terminal",
        "kind": "timeout",
        "status": 504,
        "n_prompt_tokens": 3,
        "n_tokens": 0,
        "cost": 11,
        "billing": "unknown",
        "wait_s": 0.25,
        "error": "e",
        "partial": "half a te",
    },
    "generation_spending": {
        "run_id": "r",
        "day": "2026-01-01",
        "provider": "acme",
        "model": "m",
        "asset": "completions",
        "n_calls": 1,
        "n_unknown": 1,
        "n_prompt_tokens": 3,
        "n_tokens": 0,
        "cost": 11,
        "cost_unknown": 11,
    },
}


def test_down_to_base_removes_all_and_up_starts_anew(store, make_comparisons, make_vote):
    store.comparisons.publish(make_comparisons(1), published_at=NOON)
    migrations.downgrade(store.database, "base")
    assert inspect(store.database.engine).get_table_names() == ["alembic_version"]
    store.migrate()
    store.comparisons.publish(make_comparisons(1), published_at=NOON)
    assert store.votes.cast(make_vote()).seq == 1


def test_many_may_migrate_at_once(url):
    def migrate(_: int) -> int:
        with Store.open(url, organization="org", project="demo") as store:
            store.migrate()
            return store.votes.count()

    with ThreadPoolExecutor(8) as pool:
        assert list(pool.map(migrate, range(8))) == [0] * 8


def test_a_store_of_a_newer_package_is_refused(store):
    with store.database.write_transaction() as connection:
        connection.execute(text("UPDATE alembic_version SET version_num = '9999'"))
    with pytest.raises(StoreError, match="newer version of this package"):
        store.migrate()


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
    asked: list[tuple[str, Any]] = []
    event.listen(
        store.database.engine,
        "before_cursor_execute",
        lambda c, cursor, sql, values, *more: asked.append((sql, values)),
    )
    ask()
    raw = sqlite3.connect(str(store.database.path))
    steps = [step[3] for step in raw.execute(f"EXPLAIN QUERY PLAN {asked[-1][0]}", asked[-1][1])]
    raw.close()
    return steps


@on_sqlite
def test_a_log_of_days_reads_their_rows_and_no_text(store, make_comparisons):
    store.comparisons.publish(make_comparisons(1), published_at=NOON)
    for days in (["2026-01-01"], ["2026-01-01", "2026-01-02"]):
        plan = _plan(store, lambda days=days: store.votes.log(days, up_to_seq=9))
        of_days = "(organization_id=? AND project_id=? AND day=? AND seq>? AND seq<?)"
        assert f"SEARCH votes USING INDEX ix_votes_day {of_days}" in plan, plan


@on_sqlite
def test_a_comparison_is_found_by_its_whole_row_where_its_texts_are_wanted(store, make_comparisons):
    store.comparisons.publish(make_comparisons(1), published_at=NOON)
    plan = _plan(store, lambda: store.comparisons.with_ids(["c0"]))
    assert plan == [
        "SEARCH comparisons USING INDEX sqlite_autoindex_comparisons_1 (organization_id=? AND "
        "project_id=? AND comparison_id=?)"
    ]


@pytest.mark.parametrize("version", ["0003", "0005"])
def test_a_store_of_an_earlier_version_gets_the_newest_indexes_and_statistics(store, version):
    with store.database.read_transaction() as connection:
        before = _read_by(connection)
    migrations.downgrade(store.database, version)
    with store.database.read_transaction() as connection:
        assert _read_by(connection) != before
    store.migrate()
    with store.database.read_transaction() as connection:
        assert _read_by(connection) == before


def _read_by(connection) -> set[tuple[str, ...]]:
    """The named indexes, and on SQLite what the planner was told of them."""
    told = (
        "SELECT i.name, s.stat FROM sqlite_master i LEFT JOIN sqlite_stat1 s ON s.idx = i.name "
        "WHERE i.type = 'index'"
    )
    made = "SELECT indexname::text, indexdef FROM pg_indexes WHERE schemaname = 'public'"
    rows = connection.execute(text(told if connection.dialect.name == "sqlite" else made))
    return {tuple(row) for row in rows if row[0].startswith("ix_")}


def _definitions(connection) -> set[tuple[str, ...]]:
    rows = connection.execute(
        text(
            "SELECT name, sql FROM sqlite_master WHERE type IN ('table', 'index') AND sql IS NOT "
            "NULL"
        )
    )
    kept = {
        name: sql
        for name, sql in rows
        if name != "alembic_version" and not name.startswith("sqlite_stat")
    }
    return {(name, *sorted(_parts(sql))) for name, sql in kept.items()}


def _parts(sql: str) -> list[str]:
    """What stands between the commas of a definition, whatever lines and order it is written in."""
    head, _, body = " ".join(sql.split()).partition("(")
    parts, depth = [head.replace('"', "").strip(), ""], 0
    for character in body:
        depth += (character == "(") - (character == ")")
        if character == "," and depth == 0:
            parts.append("")
        else:
            parts[-1] += character
    return [part.strip(" )") for part in parts]


def _rows(store: Store) -> dict[str, list[tuple]]:
    with store.database.read_transaction() as connection:
        return {
            name: [tuple(r) for r in connection.execute(table.select())]
            for name, table in metadata.tables.items()
        }


def _sums(store: Store) -> dict[str, tuple[int, str]]:
    """Number of rows and SHA-256 over all of them, per table; the same on whichever way they are
    read.
    """
    told = {name: sorted(repr(row) for row in rows) for name, rows in _rows(store).items()}
    return {
        name: (len(rows), hashlib.sha256("\n".join(rows).encode()).hexdigest())
        for name, rows in told.items()
    }


def _triggers(store: Store) -> int:
    where = (
        "sqlite_master WHERE type = 'trigger'"
        if store.database.is_sqlite
        else "pg_trigger WHERE NOT tgisinternal"
    )
    with store.database.read_transaction() as connection:
        return connection.execute(text(f"SELECT count(*) FROM {where}")).scalar_one()


def _constraints(connection) -> set[tuple[str, ...]]:
    """Every column, constraint and index as Postgres writes it down."""
    columns = connection.execute(
        text(
            "SELECT table_name, column_name, data_type, coalesce(character_maximum_length::text, "
            "''), is_nullable FROM information_schema.columns WHERE table_schema = 'public' AND "
            "table_name <> 'alembic_version'"
        )
    )
    constraints = connection.execute(
        text(
            "SELECT conrelid::regclass::text, conname::text, pg_get_constraintdef(oid) FROM "
            "pg_constraint WHERE contype IN ('c','f','p','u')"
        )
    )
    indexes = connection.execute(
        text(
            "SELECT tablename::text, indexname::text, indexdef FROM pg_indexes WHERE schemaname = "
            "'public'"
        )
    )
    return {
        tuple(row)
        for rows in (columns, constraints, indexes)
        for row in rows
        if "alembic_version" not in str(row[0])
    }


@on_sqlite
@pytest.mark.parametrize("before", [None, ("2026-01-01", 3, "c3")])
def test_a_page_of_a_category_reads_no_comparison_of_another(store, make_comparisons, before):
    """A rare one, or one that there is not, made the list read every comparison, texts and all."""
    store.comparisons.publish(make_comparisons(1), published_at=NOON)
    plan = _plan(store, lambda: store.comparisons.page(before=before, category="rare"))
    used = [step for step in plan if step.startswith(("SEARCH comparisons", "SCAN comparisons"))]
    assert used[0].startswith(
        "SEARCH comparisons USING INDEX ix_comparisons_category (organization_id=? AND "
        "project_id=? AND category=?"
    ), plan
    assert not [step for step in plan if "ORDER BY" in step], plan

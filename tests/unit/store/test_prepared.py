"""Statements that SQLite's driver is handed past SQLAlchemy answer as SQLAlchemy's do, on both
databases.
"""

import json
from datetime import UTC, datetime, timedelta, timezone

import pytest
from sqlalchemy import bindparam, func, select

from rlhf_pipeline.errors import StoreError
from rlhf_pipeline.store.prepared_statements import PreparedStatement, is_among
from rlhf_pipeline.store.schema import assignments, metadata

NOON = datetime(2026, 1, 1, 12, tzinfo=UTC)
NAMED = PreparedStatement(
    lambda is_sqlite: (
        select(assignments)
        .where(is_among(assignments.c.assignment_id, is_sqlite))
        .order_by(assignments.c.assignment_id)
    )
)
COUNTED = PreparedStatement(select(func.count(), func.max(assignments.c.n)))
LEASED_BEFORE = PreparedStatement(
    select(assignments.c.assignment_id).where(assignments.c.leased_until < bindparam("moment"))
)
SETTLE = PreparedStatement(
    assignments.update()
    .where(assignments.c.assignment_id == bindparam("card"))
    .values(settled_at=bindparam("new_settled_at"), is_swapped=bindparam("new_is_swapped"))
)


@pytest.fixture
def cards(store, make_comparisons):
    store.comparisons.publish(make_comparisons(3), published_at=NOON)
    rows = [
        {
            "assignment_id": f"a{i}",
            "comparison_id": f"c{i}",
            "annotator_id": 'an "annotator" — ü',
            "pass_no": 1,
            "kind": "normal",
            "is_swapped": i == 1,
            "n": i + 1,
            "state": "leased",
            "slot_no": None,
            "leased_at": NOON,
            "leased_until": NOON + timedelta(minutes=i),
            "settled_at": None,
        }
        for i in range(3)
    ]
    with store.database.write_transaction() as connection:
        store.database.insert(connection, assignments, rows)
    return rows


def test_rows_are_those_of_sqlalchemy_with_their_types(store, cards):
    wanted = select(assignments).order_by(assignments.c.assignment_id)
    with store.database.read_transaction() as connection:
        found = NAMED.rows(connection, {"values": ["a0", "a1", "a2", "nobody's"]})
        theirs = connection.execute(wanted).all()
    assert [row._asdict() for row in found] == [row._asdict() for row in theirs]
    assert [tuple(row) for row in found] == [tuple(row) for row in theirs]
    assert (found[1].is_swapped, found[1].leased_until, found[1].slot_no) == (
        True,
        NOON + timedelta(minutes=1),
        None,
    )
    assert found[0].is_swapped is False
    assert found[2].leased_until.tzinfo is not None


def test_what_is_asked_for_among_nothing_is_nothing(store, cards):
    with store.database.read_transaction() as connection:
        assert list(NAMED.rows(connection, {"values": []})) == []
        assert NAMED.first(connection, {"values": []}) is None
        assert NAMED.scalar(connection, {"values": ["nobody's"]}) is None


def test_columns_without_a_name_are_read_by_their_place(store, cards):
    with store.database.read_transaction() as connection:
        row = COUNTED.first(connection, {})
    assert (row[0], row[1]) == (3, 3)


def test_a_moment_is_compared_in_utc_whatever_its_zone(store, cards):
    moment = (NOON + timedelta(seconds=90)).astimezone(timezone(timedelta(hours=5)))
    with store.database.read_transaction() as connection:
        found = LEASED_BEFORE.rows(connection, {"moment": moment})
    assert sorted(row.assignment_id for row in found) == ["a0", "a1"]


def test_writing_runs_once_for_each_and_never_for_none(store, cards):
    with store.database.write_transaction() as connection:
        SETTLE.write(connection, [])
        SETTLE.write(
            connection,
            [
                {
                    "card": f"a{i}",
                    "new_settled_at": NOON + timedelta(hours=i),
                    "new_is_swapped": i == 0,
                }
                for i in range(2)
            ],
        )
    with store.database.read_transaction() as connection:
        rows = NAMED.rows(connection, {"values": ["a0", "a1", "a2"]})
    assert [(row.settled_at, row.is_swapped) for row in rows] == [
        (NOON, True),
        (NOON + timedelta(hours=1), False),
        (None, False),
    ]


def test_what_is_written_is_kept_or_undone_with_its_transaction(store, cards):
    with (  # noqa: PT012 - both are within the transaction
        pytest.raises(ZeroDivisionError),
        store.database.write_transaction() as connection,
    ):
        SETTLE.write(
            connection,
            [{"card": "a0", "new_settled_at": NOON, "new_is_swapped": True}],
        )
        raise ZeroDivisionError
    with store.database.read_transaction() as connection:
        assert NAMED.rows(connection, {"values": ["a0"]})[0].settled_at is None


def test_a_time_without_its_zone_is_a_named_error(store, cards):
    with (
        pytest.raises(StoreError, match="has no time zone"),
        store.database.read_transaction() as connection,
    ):
        LEASED_BEFORE.rows(connection, {"moment": NOON.replace(tzinfo=None)})


def test_a_parameter_that_is_missing_is_no_null(store, cards):
    with pytest.raises(StoreError, match="moment"), store.database.read_transaction() as connection:
        LEASED_BEFORE.rows(connection, {})


def test_the_databases_errors_are_the_stores(store, cards):
    with store.database.write_transaction() as connection:
        metadata.tables["assignments"].drop(connection)
    with (
        pytest.raises(StoreError, match="rlhf init"),
        store.database.read_transaction() as connection,
    ):
        NAMED.rows(connection, {"values": ["a0"]})


def test_a_list_may_hold_any_text(store, cards):
    odd = ['"', "'", "\\", "a,b", "[", "ü — 漢", json.dumps(["a0"])]
    with store.database.read_transaction() as connection:
        assert [row.assignment_id for row in NAMED.rows(connection, {"values": [*odd, "a2"]})] == [
            "a2"
        ]

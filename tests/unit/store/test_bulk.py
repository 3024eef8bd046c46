"""Rows written many at once read back as rows written one by one do, and fail with the same
errors.
"""

from datetime import UTC, datetime, timedelta, timezone

import pytest
from sqlalchemy import func, select, text

from rlhf_pipeline.errors import StoreError
from rlhf_pipeline.store.bulk_insert import FEW
from rlhf_pipeline.store.engine import FIRST_MEASURED
from rlhf_pipeline.store.schema import completion_cache, heartbeats, votes

NOON = datetime(2026, 1, 1, 12, tzinfo=UTC)
ODD = [
    "",
    " ",
    "\\",
    "\\N",
    "\\.",
    "a\tb",
    "a\nb",
    "a\r\nb",
    "'\"",
    "ü 漢 🙂",
    "NULL",
    "{1,2}",
    "\x07\x0b\x7f",
]


def cached(n: int, value: str = "x") -> list[dict]:
    return [
        {
            "cache_key": f"k{i}",
            "value": ODD[i] if i < len(ODD) else value,
            "stored_at": NOON + timedelta(seconds=i),
            "last_hit_at": None,
        }
        for i in range(n)
    ]


def stored(store, table) -> list[dict]:
    with store.database.read_transaction() as connection:
        return [dict(row) for row in connection.execute(select(table)).mappings()]


def insert(store, table, rows) -> None:
    with store.database.write_transaction() as connection:
        store.database.insert(connection, table, rows)


@pytest.mark.parametrize("n", [1, FEW, FEW + 1, 3 * FEW])
def test_rows_read_back_as_they_were_written(store, n):
    insert(store, completion_cache, cached(n))
    assert sorted(stored(store, completion_cache), key=lambda row: row["stored_at"]) == cached(n)


def test_missing_values_numbers_and_zones_survive(store, make_comparisons, make_vote):
    store.comparisons.publish(make_comparisons(40), published_at=NOON)
    east = timezone(timedelta(hours=9))
    sent = [
        make_vote(
            f"c{i}",
            voted_at=(NOON + timedelta(microseconds=i)).astimezone(east),
            stated_confidence=i / 100,
            duration_s=None if i % 2 else 1e-7,
        )
        for i in range(40)
    ]
    cast = store.votes.cast_many(sent)
    rows = sorted(stored(store, votes), key=lambda row: row["seq"])
    assert (
        [row["voted_at"] for row in rows]
        == [vote.voted_at for vote in cast]
        == [vote.voted_at for vote in sent]
    )
    assert [row["duration_s"] for row in rows] == [vote.duration_s for vote in sent]
    assert [row["stated_confidence"] for row in rows] == [vote.stated_confidence for vote in sent]
    assert {row["reason"] for row in rows} == {None}
    assert store.audit.verify() == 41


@pytest.mark.parametrize("n", [2, 2 * FEW])
def test_a_row_that_is_there_already_is_an_error_either_way(store, n):
    insert(store, completion_cache, cached(1))
    with pytest.raises(StoreError, match=r"(?i)unique"):
        insert(store, completion_cache, cached(n))
    assert len(stored(store, completion_cache)) == 1


@pytest.mark.parametrize("n", [2, 2 * FEW])
def test_a_time_without_zone_is_refused_either_way(store, n):
    rows = [
        {
            "run_id": f"r{i}",
            "pid": 1,
            "host": "h",
            "job": "j",
            "started_at": NOON,
            "at": NOON.replace(tzinfo=None),
        }
        for i in range(n)
    ]
    with pytest.raises((StoreError, ValueError), match="no time zone"):
        insert(store, heartbeats, rows)


def test_half_a_character_is_refused_and_nothing_kept(store):
    with pytest.raises((StoreError, UnicodeError), match="surrogates"):
        insert(store, completion_cache, cached(3 * FEW, "\ud800"))
    assert stored(store, completion_cache) == []


def test_a_table_that_grew_is_measured_at_once_on_postgres(store):
    """Or the comparison of each imported vote is looked for among all, until the server measures by
    itself.
    """
    rows = (
        select(func.count())
        .select_from(text("pg_stats"))
        .where(text("tablename = 'completion_cache'"))
    )
    few = 4 * FIRST_MEASURED - 1
    insert(
        store, completion_cache, [row | {"cache_key": f"a{n}"} for n, row in enumerate(cached(few))]
    )
    if store.database.is_sqlite:
        assert store.database._grown == {}
        return
    with store.database.read_transaction() as connection:
        assert connection.execute(rows).scalar_one() == 0
    # one by one as people do
    insert(
        store, completion_cache, [row | {"cache_key": f"b{n}"} for n, row in enumerate(cached(1))]
    )
    with store.database.read_transaction() as connection:
        assert connection.execute(rows).scalar_one() > 0
    insert(
        store,
        completion_cache,
        [row | {"cache_key": f"c{n}"} for n, row in enumerate(cached(FEW + 1))],
    )
    assert store.database._measured == {"completion_cache": few + 1}

"""Anchors: where the chain stood each day, outside the database; a tail that was cut off both is
missed.
"""

from datetime import timedelta

import pytest

from rlhf_pipeline.core.errors import StoreError
from rlhf_pipeline.core.records import AnnotationRules
from rlhf_pipeline.store.anchors import add_daily_anchor, read_anchors, verify_with_anchors
from rlhf_pipeline.store.audit import FIRST_HASH
from tests.unit.store.conftest import NOON


def act(store, n: int = 3) -> None:
    for _ in range(n):
        version, _ = store.rules.latest()
        store.rules.put(AnnotationRules(seed=version), after=version, actor="test")


def cut(store, seq: int) -> None:
    """As somebody who owns the database would."""
    with store.database.write_transaction() as connection:
        if store.database.is_sqlite:
            for (name,) in connection.exec_driver_sql(
                "SELECT name FROM sqlite_master WHERE type='trigger'"
            ).all():
                connection.exec_driver_sql(f"DROP TRIGGER {name}")
        else:
            for table in ("audit", "annotation_rules"):
                connection.exec_driver_sql(f"ALTER TABLE {table} DISABLE TRIGGER USER")
        connection.exec_driver_sql(f"DELETE FROM audit WHERE seq > {seq}")
        connection.exec_driver_sql(f"DELETE FROM annotation_rules WHERE version > {seq}")
        newest = (
            connection.exec_driver_sql("SELECT hash FROM audit ORDER BY seq DESC LIMIT 1").scalar()
            or FIRST_HASH
        )
        connection.exec_driver_sql(
            f"UPDATE chain_heads SET audit_seq = {seq}, audit_hash = '{newest}'"
        )


def test_anchor_is_written_once_a_day(store, tmp_path):
    path = tmp_path / "deep" / "anchors.jsonl"
    assert add_daily_anchor(path, store.audit, NOON) is None
    act(store)
    first = add_daily_anchor(path, store.audit, NOON)
    assert (first.seq, first.hash) == store.audit.head()
    act(store)
    assert add_daily_anchor(path, store.audit, NOON + timedelta(hours=11)) is None
    second = add_daily_anchor(path, store.audit, NOON + timedelta(hours=12))
    assert read_anchors(path) == [first, second]
    assert verify_with_anchors(store.audit, [first, second]) == 6


def test_anchor_finds_a_cut_tail_that_the_chain_misses(store, tmp_path):
    act(store, 5)
    add_daily_anchor(tmp_path / "a", store.audit, NOON)
    cut(store, 3)
    assert store.audit.verify() == 3
    with pytest.raises(
        StoreError, match="ends before seq 5, where it stood on 2026-01-01: its tail was cut"
    ):
        verify_with_anchors(store.audit, read_anchors(tmp_path / "a"))


def test_rewritten_chain_is_detected(store, tmp_path):
    act(store, 5)
    add_daily_anchor(tmp_path / "a", store.audit, NOON)
    cut(store, 3)
    for _ in range(3):
        store.guidelines.add(
            "new",
            after=store.guidelines.latest().version if store.guidelines.latest() else 0,
            actor="forger",
        )
    assert store.audit.verify() == 6
    with pytest.raises(StoreError, match="at seq 5 differs from that of 2026-01-01"):
        verify_with_anchors(store.audit, read_anchors(tmp_path / "a"))


def test_invalid_anchor_line_is_named(tmp_path):
    path = tmp_path / "a"
    path.write_text('{"seq": 1}\n')
    with pytest.raises(StoreError, match=r"Line 1 of .* is not an anchor"):
        read_anchors(path)

"""The chain holds feedback, guidelines and rules to what was written, column by column, past the
triggers.
"""

from datetime import UTC, datetime, timedelta

import pytest

from rlhf_pipeline.core.errors import StoreError
from rlhf_pipeline.core.records import AnnotationRules, GateDecision, NewFeedback
from rlhf_pipeline.store import Store
from tests.unit.store.conftest import tamper
from tests.unit.store.test_logs import report

GIVEN = datetime(2026, 1, 3, 9, tzinfo=UTC)


@pytest.fixture
def filled_store(store) -> Store:
    """Three links, three rows; the fourth link is the comparison of a correction, the fifth its
    vote, the sixth the correction.
    """
    store.guidelines.add("Be fair — ü.", after=0, actor="cura")
    store.rules.put(AnnotationRules(overlap=2), after=0, actor="cura")
    store.feedback.add(
        NewFeedback(
            kind="thumbs", value=1, completion="x", session_id="s", tags=("web",), given_at=GIVEN
        ),
        created_by="app",
    )
    store.feedback.add(
        NewFeedback(kind="correction", prompt="2+2?", completion="5", correction="4"),
        created_by="ann",
    )
    return store


def test_unchanged_rows_verify(filled_store):
    assert filled_store.audit.verify() == 6


@pytest.mark.parametrize(
    ("change", "seq", "what"),
    [
        (
            "UPDATE guidelines SET text = 'Be unfair.'",
            1,
            "version of the guidelines 1, which was changed",
        ),
        (
            "UPDATE guidelines SET created_by = 'eve'",
            1,
            "version of the guidelines 1, which was changed",
        ),
        (
            "UPDATE guidelines SET created_at = '2020-01-01 00:00:00'",
            1,
            "version of the guidelines 1, which was changed",
        ),
        ("DELETE FROM guidelines", 1, "version of the guidelines 1, which was removed"),
        (
            "UPDATE annotation_rules SET record = '{}'",
            2,
            "version of the rules 1, which was changed",
        ),
        (
            "UPDATE annotation_rules SET created_by = 'eve'",
            2,
            "version of the rules 1, which was changed",
        ),
        (
            "UPDATE feedback SET record = '{}' WHERE feedback_id = 1",
            3,
            "feedback 1, which was changed",
        ),
        (
            "UPDATE feedback SET created_by = 'eve' WHERE feedback_id = 1",
            3,
            "feedback 1, which was changed",
        ),
        (
            "UPDATE feedback SET session_id = NULL WHERE feedback_id = 1",
            3,
            "feedback 1, which was changed",
        ),
        (
            "UPDATE feedback SET kind = 'rating' WHERE feedback_id = 1",
            3,
            "feedback 1, which was changed",
        ),
        (
            "UPDATE feedback SET vote_id = NULL WHERE feedback_id = 2",
            6,
            "feedback 2, which was changed",
        ),
        (
            "UPDATE feedback SET comparison_id = 'c' WHERE feedback_id = 2",
            6,
            "feedback 2, which was changed",
        ),
        ("DELETE FROM feedback WHERE feedback_id = 2", 6, "feedback 2, which was removed"),
    ],
)
def test_changed_row_is_named(filled_store, change, seq, what):
    tamper(filled_store, change)
    with pytest.raises(StoreError, match=f"broken at seq {seq}: it stands for {what}"):
        filled_store.audit.verify()


@pytest.mark.parametrize(
    ("table", "change"),
    [
        (
            "feedback",
            "feedback_id, kind, created_by, created_at, record) SELECT "
            "9, kind, 'eve', created_at, record",
        ),
        (
            "guidelines",
            "version, text, created_at, created_by) SELECT 9, 'forged', created_at, 'eve'",
        ),
        (
            "annotation_rules",
            "version, record, created_at, created_by) SELECT 9, '{}', created_at, 'eve'",
        ),
    ],
)
def test_a_row_without_its_link_is_found(filled_store, table, change):
    tamper(filled_store, f"INSERT INTO {table} ({change} FROM {table} LIMIT 1")
    with pytest.raises(StoreError, match=f"{table}, but . are stored"):
        filled_store.audit.verify()


@pytest.fixture
def decided(store) -> Store:
    """A decision of three links, a decision of the gate and a calibration."""
    store.decisions.fire_by_hand("new data", actor="ann", now=GIVEN)
    store.training_jobs.lease(1, 1, now=GIVEN, lease=timedelta(minutes=1))
    store.training_jobs.mark_submitted(1, 1, "run")
    store.training_jobs.mark_finished(1, succeeded=False, error="out of memory")
    gate = GateDecision(
        candidate="demo.policy@2",
        champion="demo.policy@1",
        promoted=True,
        checks=(),
        decided_at=GIVEN,
    )
    store.gates.record(gate)
    store.calibrations.add(report(), {"temperature": 1.5})
    return store


def test_row_changed_by_recorded_actions_verifies(decided):
    assert decided.audit.verify() == 5


@pytest.mark.parametrize(
    ("change", "seq", "what"),
    [
        ("UPDATE decisions SET error = NULL", 3, "decision 1, which was changed"),
        ("UPDATE decisions SET record = '{}'", 3, "decision 1, which was changed"),
        ("DELETE FROM decisions", 3, "decision 1, which was removed"),
        ("UPDATE gates SET record = '{}'", 4, "decision of the gate 1, which was changed"),
        ("DELETE FROM gates", 4, "decision of the gate 1, which was removed"),
        ("UPDATE calibrations SET calibrator = '{}'", 5, "calibrator 1, which was changed"),
    ],
)
def test_a_changed_decision_is_named(decided, change, seq, what):
    tamper(decided, change)
    with pytest.raises(StoreError, match=f"broken at seq {seq}: .*{what}"):
        decided.audit.verify()

"""The log of taste changes: written with the decision that confirmed one or by a person, and
retracted.
"""

import pytest
from sqlalchemy import text

from rlhf_pipeline.core.errors import StoreError
from rlhf_pipeline.core.records import TriggerDecision
from tests.unit.store.conftest import NOON


def decision(action="fire", change_seq=2):
    return lambda evidence: TriggerDecision(
        action=action,
        reasons=("confirmed by 2 detectors", "dated"),
        event_ids=(),
        change_seq=change_seq,
        decided_at=evidence.now,
    )


@pytest.fixture
def voted(store, make_comparisons, make_vote):
    """Three votes on comparisons of category factual."""
    store.comparisons.publish(make_comparisons(3), published_at=NOON)
    store.votes.cast_many([make_vote(f"c{i}") for i in range(3)])
    return store


@pytest.fixture
def decide(voted, make_event):
    def run(rule, seq=10):
        voted.events.add([make_event(seq)])
        return voted.decisions.apply_rule(rule, now=NOON, champion="m")

    return run


def test_fire_decision_records_its_change(voted, decide):
    fired = decide(decision())
    (change,) = voted.taste_changes.all()
    assert (change.change_id, change.change_seq, change.category, change.decision_id) == (
        1,
        2,
        None,
        fired.decision_id,
    )
    assert (change.cause, change.actor, change.retracted_at) == (
        "confirmed by 2 detectors; dated",
        "pipeline",
        None,
    )
    assert [link.action for link in voted.audit.after(0, limit=50)][-2:] == [
        "decision.pending",
        "taste_change.add",
    ]
    voted.audit.verify()


@pytest.mark.parametrize(
    "rule", [decision("hold"), decision(change_seq=None)], ids=["hold", "undated"]
)
def test_hold_and_undated_fire_record_no_change(voted, decide, rule):
    decide(rule)
    assert voted.taste_changes.all() == []


def test_change_and_decision_are_stored_together_or_not_at_all(voted, decide, monkeypatch):
    def fail(*_, **__):
        raise RuntimeError

    monkeypatch.setattr("rlhf_pipeline.store.decisions.record_change", fail)
    with pytest.raises(RuntimeError):
        decide(decision())
    assert (voted.decisions.all(), voted.taste_changes.all()) == ([], [])


def test_person_records_and_retracts_a_change(voted):
    added = voted.taste_changes.add(3, cause="new guidelines", category="factual", actor="ann")
    assert (added.change_id, added.category, added.decision_id) == (1, "factual", None)
    retracted = voted.taste_changes.retract(1, reason="false alarm", actor="bob")
    assert voted.taste_changes.all() == [retracted]
    assert (retracted.retracted_by, retracted.retraction_reason) == ("bob", "false alarm")
    assert retracted.retracted_at is not None
    assert [(link.action, link.actor) for link in voted.audit.after(0, limit=50)][-2:] == [
        ("taste_change.add", "ann"), ("taste_change.retract", "bob"),
    ]  # fmt: skip


@pytest.mark.parametrize(
    "change",
    [
        "UPDATE taste_changes SET change_seq = 1 WHERE change_id = 1",
        "UPDATE taste_changes SET retracted_at = recorded_at, retracted_by = 'ann', "
        "retraction_reason = 'r' WHERE change_id = 1",
        "UPDATE taste_changes SET retracted_at = NULL WHERE change_id = 2",
        "UPDATE taste_changes SET category = NULL WHERE change_id = 2",
        "DELETE FROM taste_changes WHERE change_id = 2",
        "INSERT INTO taste_changes SELECT 3, 1, NULL, cause, "
        "decision_id, actor, recorded_at, NULL, NULL, NULL FROM taste_changes WHERE change_id = 2",
    ],
)
def test_taste_change_edited_in_the_store_is_found(voted, decide, change):
    decide(decision())
    voted.taste_changes.add(3, cause="new guidelines", category="factual", actor="ann")
    voted.taste_changes.retract(2, reason="false alarm", actor="bob")
    voted.audit.verify()
    with voted.database.write_transaction() as connection:
        connection.execute(text(change))
    with pytest.raises(StoreError, match="taste"):
        voted.audit.verify()

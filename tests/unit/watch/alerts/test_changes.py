"""Which confirmed changes are unanswered, and which decisions are about one change."""

from datetime import UTC, datetime, timedelta

from rlhf_pipeline.core.records import (
    Cause,
    ChangeCauses,
    GateCheck,
    GateDecision,
    Interval,
    Promotion,
    TriggerDecision,
)
from rlhf_pipeline.watch.alerts.changes import NOT_SERVED, read_changes

NOON = datetime(2026, 1, 10, 12, tzinfo=UTC)
CAUSES = ChangeCauses(
    change_seq=900,
    until_seq=1000,
    n_before=500,
    n_after=100,
    rise=Interval(value=0.2, low=0.1, high=0.3, n=600),
    causes=(
        Cause(name="taste", probability=0.9, effect=Interval(value=0.2, low=0.1, high=0.3, n=600)),
    ),
    summary="Annotators' taste changed.",
)


def decision(number=1, state="pending", remedy="retrain", action="fire", **more):
    return TriggerDecision(
        decision_id=number,
        action=action,
        reasons=("confirmed by 2 detectors",),
        event_ids=("e1", "e2"),
        evidence={
            "causes": CAUSES.model_dump(mode="json"),
            "confirmed": ["ddm", "sequential_test"],
        },
        decided_at=NOON + timedelta(hours=number),
        state=state,
        remedy=remedy,
        **more,
    )


def promotion(moment, kind="policy", previous=1, version=2):
    return Promotion(
        model_name=f"demo.{kind}",
        version=version,
        previous_version=previous,
        data_seq=None,
        reason="r",
        actor="pipeline",
        promoted_at=moment,
    )


def read_one(decisions, **serving):
    (reading,) = read_changes(decisions, **serving)
    return reading


def value(decisions, **serving):
    return read_one(decisions, **serving).value


def test_a_confirmed_change_names_cause_evidence_and_decision():
    reading = read_one([decision(run_id="abc")])
    assert reading.detail == "Annotators' taste changed. Decision 1: retrain"
    assert reading.evidence["cause"] == "taste"
    assert reading.evidence["detectors"] == ["ddm", "sequential_test"]
    assert reading.link == "/decisions/1"


def test_a_refused_candidate_leaves_the_change_answered_not_served():
    refused = GateDecision(
        candidate="demo.policy@2",
        champion="demo.policy@1",
        promoted=False,
        checks=(GateCheck(name="length", passed=False, reason="mean length +28 %, limit 25 %"),),
        decided_at=NOON + timedelta(hours=3),
    )
    reading = read_one([decision(state="succeeded")], gate=refused)
    assert (reading.value, reading.progress) == (1.0, NOT_SERVED)
    assert reading.loop_action == (
        "It retrained the reward model, by decision 1. The gate refused demo.policy@2: mean length "
        "+28 %, limit 25 %."
    )
    assert "rlhf models promote" in reading.next_step


def test_a_candidate_that_people_are_asked_about_needs_no_training():
    asking = GateDecision(
        candidate="demo.policy@2",
        champion="demo.policy@1",
        promoted=False,
        checks=(),
        asks_people=True,
    )
    reading = read_one([decision(state="succeeded")], asking=asking)
    assert (reading.value, reading.progress) == (1.0, NOT_SERVED)
    assert "People are asked about demo.policy@2." in reading.loop_action
    assert "rlhf policy train" not in reading.next_step


def test_a_change_of_taste_ends_with_a_promoted_policy():
    succeeded, later = decision(state="succeeded"), NOON + timedelta(hours=4)
    new_reward_model = promotion(later, "reward_model")
    reading = read_one([succeeded], champion=new_reward_model)
    assert (reading.value, reading.progress) == (1.0, NOT_SERVED)
    assert reading.next_step.startswith("Train a policy by `rlhf policy train`, or keep"), (
        "a replay trains none, and there is no candidate to serve"
    )
    for policy, ends_at in (
        (promotion(NOON), 1.0),
        (promotion(later, previous=None), 1.0),
        (promotion(later), 0.0),
    ):
        reading = read_one([succeeded], champion=new_reward_model, policies=[policy])
        assert reading.value == ends_at
    assert (reading.detail, reading.progress) == ("demo.policy@2 serves now", "")


def test_a_rolled_back_policy_does_not_follow_the_change():
    """Decisions about simulated or imported days carry times before every promotion."""
    for first in (NOON, NOON + timedelta(hours=3)):
        policies = [
            promotion(first, previous=None, version=1),
            promotion(NOON + timedelta(hours=4)),
            promotion(NOON + timedelta(hours=5), previous=2, version=1),
        ]
        reading = read_one([decision(state="succeeded")], policies=policies)
        assert reading.detail == "policy 1, from before the change, serves again"
        assert reading.value == 0.0, "a person decided"


def test_answered_change_shows_its_progress():
    progress = {
        "submitted": "its run is not finished",
        "failed": "its run failed",
        "succeeded": NOT_SERVED,
    }
    for state, words in progress.items():
        assert read_one([decision(state=state)]).progress == words
    retried = [decision(state="failed"), decision(2, state="succeeded")]
    assert read_one(retried).progress == NOT_SERVED


def test_a_recalibration_ends_a_change_when_its_run_finished():
    assert value([decision(remedy="refit_calibrator", state="submitted")]) == 1.0
    assert value([decision(remedy="refit_calibrator", state="succeeded")]) == 0.0


def test_pending_change_ends_with_answer_or_new_model():
    held_decision = decision(state="held", action="hold", remedy="quarantine")
    reading = read_one([held_decision], champion=promotion(NOON, "reward_model"))
    assert reading.detail.endswith("votes of careless annotators once a person agrees")
    by_hand = {"actor": "ada", "answers": 1}
    for answer, expected in (
        (decision(2, "held", None, "hold", **by_hand), 0.0),
        (decision(2, "pending", "quarantine", **by_hand), 1.0),
        (decision(2, "succeeded", "quarantine", **by_hand), 0.0),
        (decision(2, "succeeded", "quarantine", actor="ada", answers=7), 1.0),
    ):
        assert value([held_decision, answer]) == expected
    pending, failed = (decision(2, state, "retrain", **by_hand) for state in ("pending", "failed"))
    assert read_one([held_decision, pending]).progress == "its run is not finished"
    assert read_one([held_decision, failed]).progress == "waits for a person"
    later = promotion(NOON + timedelta(hours=2), "reward_model")
    assert value([held_decision], champion=later) == 0.0


def test_replayed_change_ends_with_a_later_promotion():
    replayed_at = NOON + timedelta(days=50)
    before, after = (replayed_at + timedelta(hours=hours) for hours in (-1, 1))
    question = decision(remedy="quarantine", action="hold", state="held", recorded_at=replayed_at)
    own = promotion(before, kind="reward_model")
    assert read_one([question], champion=own).progress == "waits for a person"
    newer = promotion(after, kind="reward_model")
    assert read_one([question], champion=newer).detail == "demo.reward_model@2 is the champion now"
    retrained = decision(state="succeeded", recorded_at=replayed_at)
    assert value([retrained], policies=[promotion(before)]) == 1.0
    assert value([retrained], policies=[promotion(after)]) == 0.0


def test_unconfirmed_holds_and_manual_decisions_are_not_drift():
    held_decision = decision(state="held", action="hold", remedy=None)
    assert read_changes([held_decision.model_copy(update={"evidence": {"confirmed": []}})]) == []
    assert read_changes([decision(actor="ada")]) == []


def waiting(number, *reasons, **known):
    held_decision = decision(number, "held", None, "hold")
    evidence = held_decision.evidence | {"looked_at": known}
    return held_decision.model_copy(update={"reasons": reasons, "evidence": evidence})


def test_change_of_unclear_cause_is_one_change():
    held_decision = waiting(1, "cause not clear yet")
    reading = read_one([held_decision, waiting(2, "cause not clear yet")])
    assert (reading.value, reading.progress) == (1.0, "not answered")
    assert reading.detail == "Annotators' taste changed. Not answered yet: cause not clear yet"
    reading = read_one([held_decision, decision(2)])
    assert reading.detail == "Annotators' taste changed. Decision 2: retrain"


def test_probable_false_alarm_opens_no_alert():
    def unclear(number, name):
        causes = CAUSES.model_copy(
            update={"causes": (CAUSES.causes[0].model_copy(update={"name": name}),)}
        )
        held_decision = waiting(number, "cause not clear yet")
        evidence = held_decision.evidence | {"causes": causes.model_dump(mode="json")}
        return held_decision.model_copy(update={"evidence": evidence})

    assert value([unclear(1, "nothing")]) == 0.0
    assert value([unclear(1, "nothing"), unclear(2, "taste")]) == 1.0


def test_a_false_alarm_ends_the_change_until_the_next_one():
    waited = waiting(1, "cause not clear yet")
    dismissed = decision(2, state="held", action="hold", remedy="dismiss")
    reading = read_one([waited, dismissed])
    assert (reading.value, reading.detail) == (0.0, "later votes show no rise: a false alarm")
    readings = read_changes([waited, dismissed, waiting(3)])
    assert [(r.subject, r.value) for r in readings] == [("decision 1", 0.0), ("decision 3", 1.0)]


def test_unanswered_decisions_stay_visible():
    left = {"decision_id": 1, "seq": 900, "is_answered": False}
    question = decision(state="held", action="hold", remedy="report_two_tastes")
    during = waiting(2, "1 earlier retraining decision not finished", n_unfinished=1)
    for answer, later, progress in (
        (decision(state="submitted"), during, "its run is not finished"),
        (decision(state="failed"), waiting(2, "cool-down"), "its run failed"),
    ):
        assert read_one([answer, later]).progress == progress
    answered = waiting(2, "not clear", left_to_people=[left | {"is_answered": True}])
    dismissed = decision(3, "held", None, "hold", actor="ada", answers=1)
    readings = read_changes([question, answered, dismissed])
    assert [(r.value, r.progress) for r in readings] == [(0.0, ""), (1.0, "not answered")]


def test_each_reward_model_has_its_own_change():
    decisions = [waiting(1, champion="rm@1"), waiting(2, champion="rm@2")]
    readings = read_changes([*decisions, waiting(3, champion="rm@1")])
    assert [(r.subject, r.value) for r in readings] == [("decision 1", 1.0), ("decision 2", 1.0)]


def test_later_change_opens_an_alert_and_a_retry_does_not():
    for state, subjects in (
        ("succeeded", ["decision 1", "decision 2"]),
        ("failed", ["decision 1"]),
    ):
        readings = read_changes([decision(state=state), decision(2)])
        assert [reading.subject for reading in readings if reading.value] == subjects

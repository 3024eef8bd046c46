"""Which confirmed changes are unanswered, and which decisions are about one change."""

from datetime import UTC, datetime, timedelta

from rlhf_pipeline.alerts.changes import NOT_SERVED, ServingHistory, read_changes
from rlhf_pipeline.records import (
    Cause,
    ChangeCauses,
    GateCheck,
    GateDecision,
    Interval,
    Promotion,
    TriggerDecision,
)

NOON = datetime(2026, 1, 10, 12, tzinfo=UTC)
CAUSES = ChangeCauses(
    change_seq=900,
    until_seq=1000,
    n_before=500,
    n_after=100,
    rise=Interval(value=0.2, low=0.1, high=0.3, n=600),
    causes=(Cause(name="taste", share=0.9),),
    summary="Annotators' taste changed.",
)


def decision(number=1, state="pending", remedy="retrain", action="fire", **more):
    return TriggerDecision(
        decision_id=number,
        action=action,
        reasons=("confirmed by 2 detectors",),
        event_ids=("e1", "e2"),
        evidence={"causes": CAUSES.model_dump(mode="json"), "confirmed": ["ddm", "rise_test"]},
        decided_at=NOON + timedelta(hours=number),
        state=state,
        remedy=remedy,
        **more,
    )


def promotion(moment, kind="policy", previous=1):
    return Promotion(
        model_name=f"demo.{kind}",
        version=2,
        previous_version=previous,
        data_seq=None,
        reason="r",
        actor="pipeline",
        promoted_at=moment,
    )


def champion_at(moment):
    return ServingHistory(reward_model=promotion(moment, "reward_model"))


def values(decisions, serving=ServingHistory()):  # noqa: B008  it is immutable
    return [r.value for r in read_changes(decisions, serving)]


def read_one(decisions, serving=ServingHistory()):  # noqa: B008
    (reading,) = read_changes(decisions, serving)
    return reading


def test_a_confirmed_change_names_cause_evidence_and_decision():
    reading = read_one([decision(run_id="abc")])
    assert reading.detail == "Annotators' taste changed. Decision 1: retrain"
    assert reading.evidence["cause"] == "taste"
    assert reading.evidence["detectors"] == ["ddm", "rise_test"]
    assert reading.link == "/decisions/1"


def test_a_refused_candidate_leaves_the_change_answered_not_served():
    refused = GateDecision(
        candidate="demo.policy@2",
        champion="demo.policy@1",
        promoted=False,
        checks=(GateCheck(name="length", passed=False, reason="mean length +28 %, limit 25 %"),),
        decided_at=NOON + timedelta(hours=3),
    )
    reading = read_one([decision(state="succeeded")], ServingHistory(gate=refused))
    assert (reading.value, reading.progress) == (1.0, NOT_SERVED)
    assert reading.loop_action == (
        "It retrained the reward model, by decision 1. The gate refused demo.policy@2: mean length "
        "+28 %, limit 25 %."
    )
    assert "rlhf models promote" in reading.next_step


def test_a_change_of_taste_ends_with_a_promoted_policy():
    succeeded, later = decision(state="succeeded"), NOON + timedelta(hours=4)
    new_reward_model = promotion(later, "reward_model")
    reading = read_one([succeeded], ServingHistory(reward_model=new_reward_model))
    assert (reading.value, reading.progress) == (1.0, NOT_SERVED)
    for policy, value in (
        (promotion(NOON), 1.0),
        (promotion(later, previous=None), 1.0),
        (promotion(later), 0.0),
    ):
        reading = read_one([succeeded], ServingHistory(new_reward_model, [policy]))
        assert reading.value == value
    assert (reading.detail, reading.progress) == ("demo.policy@2 serves now", "")


def test_progress_of_an_answer_is_named():
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
    assert values([decision(remedy="refit_calibrator", state="submitted")]) == [1.0]
    assert values([decision(remedy="refit_calibrator", state="succeeded")]) == [0.0]


def test_an_ordered_training_answers_no_change():
    order = {"order": {"stages": {"candidate_model": {"strategy": "dpo"}}}}
    by_hand = decision(2, "succeeded", None, actor="ada").model_copy(update={"evidence": order})
    assert values([decision(state="failed"), by_hand]) == [1.0]


def test_a_change_that_waits_ends_with_a_new_reward_model():
    held = decision(state="held", action="hold", remedy="quarantine")
    assert values([held], champion_at(NOON)) == [1.0]
    assert values([held], champion_at(NOON + timedelta(hours=2))) == [0.0]


def test_a_change_is_answered_by_a_person():
    held = decision(state="held", action="hold", remedy="quarantine")
    reading = read_one([held])
    assert reading.detail.endswith("votes of careless annotators once a person agrees")
    by_hand = {"actor": "ada", "answers": 1}
    assert values([held, decision(2, "held", None, "hold", **by_hand)]) == [0.0]
    assert values([held, decision(2, "pending", "quarantine", **by_hand)]) == [1.0]
    assert values([held, decision(2, "succeeded", "quarantine", **by_hand)]) == [0.0]


def test_only_its_answer_ends_a_change_that_waits_for_people():
    held = decision(state="held", action="hold", remedy="report_two_tastes")
    for remedy in ("quarantine", "lift_quarantine"):
        unrelated = decision(2, "succeeded", remedy, actor="ada", answers=7)
        assert values([held, unrelated]) == [1.0]
    assert values([held, decision(3, "succeeded", "reweight", actor="ada", answers=1)]) == [0.0]


def test_an_unconfirmed_hold_and_a_decision_by_hand_are_no_drift():
    held = decision(state="held", action="hold", remedy=None)
    assert values([held.model_copy(update={"evidence": {"confirmed": []}})]) == []
    assert values([decision(actor="ada")]) == []


def waiting(number, *reasons, **known):
    held = decision(number, "held", None, "hold")
    held = held.model_copy(update={"reasons": reasons})
    return held.model_copy(update={"evidence": held.evidence | {"looked_at": known}})


def test_a_change_that_waits_for_a_clear_cause_is_one_change_with_its_answer():
    held = waiting(1, "cause not clear yet")
    reading = read_one([held, waiting(2, "cause not clear yet")])
    assert (reading.value, reading.subject) == (1.0, "decision 1")
    assert reading.detail == "Annotators' taste changed. Not answered yet: cause not clear yet"
    reading = read_one([held, decision(2)])
    assert (reading.value, reading.subject) == (1.0, "decision 1")
    assert reading.detail == "Annotators' taste changed. Decision 2: retrain"
    assert values([held, decision(2, state="succeeded")]) == [1.0]
    assert values([held], champion_at(NOON + timedelta(hours=2))) == [0.0]


def test_a_change_that_is_probably_nothing_opens_no_alert_while_it_waits():
    def unclear(number, probability):
        causes = CAUSES.model_copy(
            update={"causes": (Cause(name="taste", share=0.9, probability=probability),)}
        )
        held = waiting(number, "cause not clear yet")
        evidence = held.evidence | {"causes": causes.model_dump(mode="json")}
        return held.model_copy(update={"evidence": evidence})

    assert values([unclear(1, 0.3)]) == [0.0]
    assert values([unclear(1, 0.3), unclear(2, 0.6)]) == [1.0]
    assert values([unclear(1, 0.6)]) == [1.0]


def test_a_false_alarm_answers_the_change_that_waited():
    waited = waiting(1, "cause not clear yet")
    dismissed = decision(2, state="held", action="hold", remedy="dismiss")
    reading = read_one([waited, dismissed])
    assert (reading.value, reading.detail) == (0.0, "later votes show no rise: a false alarm")
    assert values([waited, dismissed, waiting(3)]) == [0.0, 1.0]
    asked = decision(1, "held", "quarantine", "hold")
    for answered in (asked, decision(1, "submitted"), decision(1, "failed")):
        beside = dismissed.model_copy(
            update={
                "evidence": dismissed.evidence
                | {
                    "looked_at": {
                        "n_unfinished": 1,
                        "left_to_people": {"decision_id": 1, "is_answered": False},
                    }
                }
            }
        )
        assert values([answered, beside]) == [1.0, 0.0]


def test_events_during_a_run_or_after_a_failed_one_are_about_the_same_change():
    during = waiting(2, "1 earlier retraining decision not finished", n_unfinished=1)
    assert values([decision(state="submitted"), during]) == [1.0]
    assert values([decision(state="failed"), waiting(2, "cool-down")]) == [1.0]
    assert values([decision(state="failed"), waiting(2, "cool-down"), decision(3)]) == [1.0]


def test_change_found_while_an_order_is_open_is_its_own():
    beside = waiting(2, "1 training job not finished", n_ordered=1)
    assert values([decision(state="succeeded"), beside]) == [1.0, 1.0]


def test_what_comes_after_an_answer_is_another_change():
    after = waiting(2, "cool-down")
    assert values([decision(state="succeeded"), after]) == [1.0, 1.0]
    other_champion = waiting(2, "cool-down", champion="demo.reward_model@2")
    assert values([waiting(1, "cause not clear yet"), other_champion]) == [1.0, 1.0]


def test_events_beyond_a_change_that_waits_for_people_are_its_own_until_they_answer():
    held = decision(state="held", action="hold", remedy="report_two_tastes")

    def later(is_answered):
        left = {"decision_id": 1, "seq": 900, "is_answered": is_answered}
        return waiting(3, "waits for a person", left_to_people=left)

    assert values([held, later(False)]) == [1.0]
    dismissed = decision(2, "held", None, "hold", actor="ada", answers=1)
    assert values([held, dismissed, later(True)]) == [0.0, 1.0]

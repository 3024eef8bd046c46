"""Fire or hold: every rule alone, their order in time, and replay."""

from datetime import UTC, date, datetime, timedelta
from typing import Any

import pytest

from rlhf_pipeline.core.records import (
    DriftEvent,
    LeftToPeople,
    Quarantine,
    TriggerDecision,
    TriggerEvidence,
)
from rlhf_pipeline.improve.retraining.explanation import read_inputs
from rlhf_pipeline.improve.retraining.triggers import (
    TriggerParams,
    decide,
    find_pending_change,
)
from tests.unclear_change import risen, unclear_rise

NOW = datetime(2026, 1, 6, 12, tzinfo=UTC)
CHAMPION = "demo.reward_model@1"
TWO = TriggerParams(confirmations=2)


def replay(decision: TriggerDecision) -> TriggerDecision:
    """The decision made again from its own evidence alone."""
    return decide(*read_inputs(decision))


def event(
    detector: str,
    seq: int = 1000,
    *,
    kind: str = "drift",
    model: str = CHAMPION,
    change_seq: int | None = 900,
) -> DriftEvent:
    return DriftEvent(
        kind=kind,
        model_version=model,
        detector=detector,
        params_hash="h",
        stream="errors" if kind == "drift" else kind,
        seq=seq,
        day=date(2026, 1, 5),
        change_seq=change_seq,
        evidence={},
        detected_at=NOW,
    )


def evidence(*open_events: DriftEvent, **more) -> TriggerEvidence:
    values = {
        "champion": CHAMPION,
        "open_events": open_events,
        "held_events": (),
        "last_fired_at": None,
        "n_new_votes": 1500,
        "max_seq": 1500,
        "now": NOW,
    }
    return TriggerEvidence(**(values | more))


def held(decision: TriggerDecision, *words: str) -> bool:
    assert decision.action == "hold"
    assert decision.state == "held"
    assert decision.change_seq is None
    return all(any(word in reason for reason in decision.reasons) for word in words)


def test_two_detectors_fire_with_the_earliest_start():
    pair = event("ddm", 1000, change_seq=880), event("adwin", 1100, change_seq=905)
    decision = decide(evidence(*pair), TWO)
    assert (decision.action, decision.state, decision.change_seq, decision.decided_at) == (
        "fire",
        "pending",
        880,
        NOW,
    )
    assert set(decision.event_ids) == {e.event_id for e in pair}
    assert decision.reasons == (
        "confirmed by 2 detectors (adwin, ddm) between votes 1000 and 1100; change dated at vote "
        "880",
    )


def test_held_event_is_confirmed_by_a_later_one():
    first, second = event("ddm", 1000), event("hddm_a", 1300)
    decision = decide(evidence(second, held_events=(first,)), TWO)
    assert decision.action == "fire"
    assert set(decision.event_ids) == {first.event_id, second.event_id}


def test_events_too_far_apart_do_not_confirm_each_other():
    assert held(decide(evidence(event("ddm", 100), event("adwin", 1200)), TWO), "too far apart")
    assert (
        decide(
            evidence(event("ddm", 100), event("adwin", 1200)),
            TWO.model_copy(update={"confirmation_window": 2000}),
        ).action
        == "fire"
    )


def test_failed_calibration_tests_confirm_no_detector():
    slope, ddm = event("slope", kind="calibration"), event("ddm", 1010)
    assert held(decide(evidence(slope)), "calibration tests alone failed")
    assert held(decide(evidence(slope, ddm)), "1 detector reported (ddm)")


@pytest.mark.parametrize(
    ("cause", "remedy", "action", "change_seq"),
    [
        ("taste", "retrain", "fire", 980),
        ("category", "retrain_category", "fire", 980),
        ("mix", "reweight", "fire", None),
        ("calibration", "refit_calibrator", "fire", None),
        ("carelessness", "quarantine", "hold", None),
        ("newcomers", "report_two_tastes", "hold", None),
    ],
)
def test_the_cause_decides_the_response(cause, remedy, action, change_seq):
    rise = risen(1000, **{cause: 0.95, "nothing": 0.05})
    decision = decide(evidence(rise, max_seq=1010))
    assert (decision.action, decision.remedy) == (action, remedy)
    assert decision.change_seq == change_seq
    assert decision.event_ids == (rise.event_id,)
    assert f"Most likely cause: {cause}." in decision.reasons
    assert decision.evidence.get("category") == ("maths" if cause == "category" else None)
    assert replay(decision) == decision
    blind = TriggerParams(respond_to_causes=False)
    assert decide(evidence(rise, max_seq=1010), blind).remedy == "retrain"


def test_remedies_that_drop_votes_ask_a_person():
    for cause, names in (("carelessness", ("bob", "cat")), ("newcomers", ("eve", "fay"))):
        decision = decide(evidence(risen(1000, **{cause: 0.95})))
        assert held(decision, f"{', '.join(names)}, from vote 980 on")
        assert decision.quarantine == Quarantine(annotator_ids=names, from_seq=980)
    rise = risen(1000, carelessness=0.95)
    rise.evidence["causes"]["causes"][0]["evidence"]["annotator_ids"] = []
    decision = decide(evidence(rise))
    assert held(decision, "careless annotators are left out: none surely enough to be named")
    assert decision.quarantine is None


def test_later_events_of_a_pending_change_belong_to_it():
    signs = event("ddm", 1060), event("adwin", 1090)
    new = event("ddm", 2100), event("adwin", 2150)
    left = LeftToPeople(decision_id=7, seq=1000)
    answered = left.model_copy(update={"is_answered": True})
    for known in (left, answered):
        assert held(decide(evidence(*signs, left_to_people=(known,))), "no open or held event")
        fired = decide(evidence(*new, held_events=signs, left_to_people=(known,)), TWO)
        assert (fired.action, fired.event_ids) == ("fire", tuple(each.event_id for each in new))
    reread = answered.model_copy(update={"reread_from": NOW})
    assert decide(evidence(*signs, left_to_people=(reread,)), TWO).action == "fire"
    later = answered.model_copy(update={"reread_from": NOW + timedelta(hours=1)})
    assert held(decide(evidence(*signs, left_to_people=(later,))), "no open or held event")


def test_other_changes_are_answered_while_a_question_is_open():
    left = LeftToPeople(decision_id=7, seq=1000)
    taste = decide(evidence(risen(2000, taste=0.95), left_to_people=(left,)))
    assert (taste.action, taste.remedy) == ("fire", "retrain")


def test_events_of_another_cause_belong_to_another_change():
    of_bob = LeftToPeople(
        decision_id=7, seq=1000, cause="carelessness", annotator_ids=("bob",), is_answered=True
    )
    same, taste = risen(1400, carelessness=0.95), risen(1400, taste=0.95)
    assert held(decide(evidence(same, left_to_people=(of_bob,))), "no open or held event")
    assert decide(evidence(taste, left_to_people=(of_bob,))).action == "fire"
    unsure = risen(1400, taste=0.6, carelessness=0.4)
    assert held(decide(evidence(unsure, left_to_people=(of_bob,))), "no open or held event")
    of_dan = of_bob.model_copy(update={"annotator_ids": ("dan",)})
    assert decide(evidence(same, left_to_people=(of_dan,))).remedy == "quarantine"


def test_a_question_concerns_the_events_of_its_own_change():
    first, second = risen(1000, carelessness=0.95), risen(2000, newcomers=0.95)
    question = decide(evidence(first, second))
    assert (question.remedy, question.event_ids) == ("quarantine", (first.event_id,))


def test_second_question_waits_for_the_first_answer():
    left, others = LeftToPeople(decision_id=7, seq=1000), risen(2000, carelessness=0.95)
    waiting = decide(evidence(others, left_to_people=(left,)))
    assert held(waiting, "decision 7 asks a person first")
    assert (waiting.remedy, waiting.event_ids) == (None, (others.event_id,))
    assert replay(waiting) == waiting
    taste = risen(2600, taste=0.95)
    fired = decide(evidence(taste, held_events=(others,), left_to_people=(left,)))
    assert (fired.action, fired.remedy) == ("fire", "retrain")
    answered = left.model_copy(update={"is_answered": True})
    question = decide(evidence(held_events=(others,), left_to_people=(answered,)))
    assert (question.action, question.remedy) == ("hold", "quarantine")


def test_an_unclear_cause_waits_for_more_votes_and_then_retrains():
    rise = unclear_rise(1000)

    def decide_at(max_seq: int, rise: DriftEvent = rise, **params: Any) -> TriggerDecision:
        known = evidence(held_events=(rise,), max_seq=max_seq)
        return decide(known, TriggerParams(**params))

    waiting = decide_at(1100)
    assert held(
        waiting,
        "cause not clear yet (taste 60%, carelessness 40%): decided after 400 more votes",
    )
    assert waiting.remedy is None
    assert replay(waiting) == waiting
    assert decide_at(1500).remedy == "retrain"
    assert decide_at(1100, min_certainty=0.5).remedy == "retrain"
    question = decide_at(1500, unclear_cause="hold")
    assert held(question, "the cause is not clear: a person decides whether to retrain")
    assert (question.remedy, question.quarantine) == ("ask_for_cause", None)
    assert replay(question) == question
    careless = risen(1000, carelessness=0.6, taste=0.4)
    assert decide_at(1499, careless).remedy is None
    assert decide_at(1500, careless).remedy == "quarantine"
    together = risen(1000, taste=0.7, category=0.25)
    assert decide_at(1100, together).remedy == "retrain"
    few = risen(1000, taste=0.99, people=0.2)
    assert held(decide_at(1100, few), "taste 99%, but of few annotators")
    assert decide_at(1500, few).remedy == "retrain"


def test_no_promotion_while_the_cause_is_unclear():
    rise = unclear_rise(1000)

    def wait(max_seq: int, **more: Any) -> str | None:
        return find_pending_change(evidence(held_events=(rise,), max_seq=max_seq, **more))

    assert str(wait(1100)).startswith("cause not clear yet (taste 60%, carelessness 40%)")
    assert wait(1100, last_fired_at=NOW, n_new_votes=1)  # a cool-down ends before the votes come
    assert "after 100 more votes" in str(wait(1400))
    assert wait(1500) is None
    assert wait(1100, champion="demo.reward_model@2") is None
    people = LeftToPeople(decision_id=1, seq=900, is_answered=False)
    assert wait(1100, left_to_people=(people,)) is None  # they may take as long as they like
    assert find_pending_change(evidence(event("ddm"), event("adwin"))) is None


def test_unconfirmed_rise_is_dismissed():
    alarm, other = risen(1000, nothing=0.6, taste=0.4), event("ddm", 2000)
    assert held(decide(evidence(alarm, other, max_seq=1499)), "cause not clear yet")
    dismissal = decide(evidence(alarm, other, max_seq=1500, n_new_votes=1))
    assert held(dismissal, "dismissed as a false alarm")
    assert (dismissal.remedy, dismissal.event_ids) == ("dismiss", (alarm.event_id,))
    assert replay(dismissal) == dismissal
    flat = risen(1000, taste=0.8, low=-0.01)
    assert decide(evidence(flat, max_seq=1500)).remedy == "dismiss"
    assert decide(evidence(risen(1000, taste=0.8), max_seq=1500)).remedy == "retrain"


def test_causes_of_the_sequential_test_decide():
    ours, other = risen(1000, taste=0.95), risen(1100, detector="ddm", carelessness=0.95)
    assert decide(evidence(ours, other)).remedy == "retrain"


def test_persistent_miscalibration_is_refitted_alone():
    def failed(day: int) -> DriftEvent:
        return event("slope", 1000 * day, kind="calibration").model_copy(
            update={"day": date(2026, 1, day)}
        )

    assert held(decide(evidence(failed(1), failed(2))), "unconfirmed")
    decision = decide(evidence(failed(1), failed(2), failed(3)))
    assert (decision.action, decision.remedy) == ("fire", "refit_calibrator")
    assert decision.change_seq is None
    assert replay(decision) == decision
    assert held(decide(evidence(failed(1), failed(2), failed(20))), "unconfirmed")
    rising = event("hddm_a", 9000)
    assert held(decide(evidence(failed(1), failed(2), failed(3), rising)), "unconfirmed")
    long_ago = rising.model_copy(update={"day": date(2025, 11, 1)})
    assert decide(evidence(long_ago, failed(1), failed(2), failed(3))).action == "fire"


def test_events_of_a_former_champion_are_superseded():
    old = event("ddm", model="demo.reward_model@0"), event("adwin", model="demo.reward_model@0")
    decision = decide(evidence(*old))
    assert held(decision, f"superseded: 2 events of demo.reward_model@0, champion is {CHAMPION}")
    assert set(decision.event_ids) == {e.event_id for e in old}


def test_without_a_champion_nothing_fires():
    assert held(decide(evidence(event("ddm"), event("adwin"), champion=None)), "no champion")


def test_an_unfinished_retraining_holds_the_next():
    assert held(
        decide(evidence(event("ddm"), event("adwin"), n_unfinished=1)),
        "1 earlier retraining decision not finished",
    )


def test_change_during_cool_down_fires_after_it():
    pair = event("ddm"), event("adwin")
    fired = NOW - timedelta(hours=23)
    assert held(
        decide(evidence(*pair, last_fired_at=fired), TWO),
        "cool-down: last fired 23.0 h ago, 24 h are required",
    )
    later = evidence(held_events=pair, last_fired_at=fired, now=NOW + timedelta(hours=1))
    assert decide(later, TWO).action == "fire"


def test_too_few_new_votes_hold_retraining():
    assert held(
        decide(evidence(event("ddm"), event("adwin"), n_new_votes=199)),
        "199 new votes since the last retraining, 200 are required",
    )
    assert decide(evidence(event("ddm"), event("adwin"), n_new_votes=200), TWO).action == "fire"


@pytest.mark.parametrize("events", [(event("ddm"), event("adwin")), (event("ddm"),), ()])
def test_decision_is_reproducible_from_its_evidence(events):
    decision = decide(evidence(*events), TWO.model_copy(update={"cool_down_hours": 6.0}))
    stored = TriggerDecision.from_json(decision.model_dump_json())
    assert replay(stored) == decision == stored

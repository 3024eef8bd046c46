"""Fire or hold: every rule alone, their order in time, and replay."""

from datetime import UTC, date, datetime, timedelta
from typing import Any

import pytest

from rlhf_pipeline.records import (
    Cause,
    ChangeCauses,
    DriftEvent,
    Interval,
    LeftToPeople,
    Quarantine,
    TriggerDecision,
    TriggerEvidence,
)
from rlhf_pipeline.retraining.triggers import (
    REMEDIES,
    TriggerParams,
    decide,
    find_unclear_change,
    replay,
)
from tests.unclear_change import unclear_rise

NOW = datetime(2026, 1, 6, 12, tzinfo=UTC)
CHAMPION = "demo.reward_model@1"
ASKING = TriggerParams(asks_people=True)


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


def test_two_detectors_fire_with_the_earliest_beginning():
    pair = event("ddm", 1000, change_seq=880), event("adwin", 1100, change_seq=905)
    decision = decide(evidence(*pair))
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


def test_a_held_event_is_confirmed_by_a_later_one_and_named_in_the_decision():
    first, second = event("ddm", 1000), event("hddm_a", 1300)
    decision = decide(evidence(second, held_events=(first,)))
    assert decision.action == "fire"
    assert set(decision.event_ids) == {first.event_id, second.event_id}


def test_events_too_far_apart_do_not_confirm_each_other():
    assert held(decide(evidence(event("ddm", 100), event("adwin", 1200))), "too far apart")
    assert (
        decide(
            evidence(event("ddm", 100), event("adwin", 1200)),
            TriggerParams(confirmation_window=2000),
        ).action
        == "fire"
    )


def test_failed_calibration_tests_confirm_no_detector():
    slope, ddm = event("slope", kind="calibration"), event("ddm", 1010)
    assert held(decide(evidence(slope)), "calibration tests alone failed")
    assert held(decide(evidence(slope, ddm)), "1 detector reported (ddm)")


def careless(annotator: str, **figures) -> dict:
    usual = {"error": 0.5, "expected_error": 0.25, "probability": 0.9}
    counts = {"n_votes": 80, "n_votes_before": 12}
    return {"annotator_id": annotator} | usual | counts | figures


SPAM = {
    "each": [careless("bob"), careless("cat"), careless("dan", error=0.2)],
    "n_active": 10,
    "n_votes_of_all_before": 100,
}
NEWCOMERS = {"annotator_ids": ["eve", "fay"]}
FOUND = {"carelessness": SPAM, "newcomers": NEWCOMERS, "category": {"category": "maths"}}


def caused_by(name: str, *, seq: int = 1000, detector: str = "rise_test", **found) -> DriftEvent:
    found = FOUND.get(name, {}) | found
    others = [n for n in REMEDIES if n != name]
    causes = ChangeCauses(
        change_seq=900,
        until_seq=seq,
        n_before=800,
        n_after=seq - 900,
        rise=Interval(value=0.15, low=0.08, high=0.22, n=900),
        causes=(
            Cause(name=name, share=0.8, evidence=found),
            *(Cause(name=other, share=0.0) for other in others),
        ),
        summary=f"Most likely cause: {name}.",
    )
    risen = event(detector, seq)
    return risen.model_copy(update={"evidence": {"causes": causes.model_dump(mode="json")}})


@pytest.mark.parametrize(
    ("cause", "remedy", "action", "change_seq"),
    [
        ("taste", "retrain", "fire", 900),
        ("category", "retrain_category", "fire", 900),
        ("mix", "reweight", "fire", None),
        ("calibration", "refit_calibrator", "fire", None),
        ("carelessness", "quarantine", "fire", None),
        ("newcomers", "report_two_tastes", "hold", None),
    ],
)
def test_the_cause_decides_the_response(cause, remedy, action, change_seq):
    risen = caused_by(cause)
    decision = decide(evidence(risen))
    assert (decision.action, decision.remedy) == (action, remedy)
    assert decision.change_seq == change_seq
    assert decision.event_ids == (risen.event_id,)
    assert f"Most likely cause: {cause}." in decision.reasons
    assert decision.evidence.get("category") == ("maths" if cause == "category" else None)
    assert replay(decision) == decision


def test_a_cause_that_explains_little_retrains():
    risen = caused_by("carelessness")
    causes = risen.evidence["causes"]
    part = [c | {"share": 0.34} if c["name"] == "carelessness" else c for c in causes["causes"]]
    unsure = risen.model_copy(update={"evidence": {"causes": causes | {"causes": part}}})
    assert decide(evidence(unsure)).remedy == "retrain"
    assert decide(evidence(unsure)).quarantine is None
    params = TriggerParams(min_cause_share=0.2)
    assert decide(evidence(unsure), params).remedy == "quarantine"


def test_a_quarantine_names_those_who_explain_the_rise_from_the_change_on():
    decision = decide(evidence(caused_by("carelessness")))
    named = Quarantine(annotator_ids=("bob", "cat"), from_seq=900)
    assert decision.quarantine == named
    assert "votes of careless annotators are left out: bob, cat, from vote 900 on" in (
        decision.reasons
    )
    asked = decide(evidence(caused_by("carelessness")), ASKING)
    assert (asked.action, asked.state, asked.remedy) == ("hold", "held", "quarantine")
    assert asked.quarantine == named
    assert "nothing runs until a person answers: `rlhf triggers answer`" in asked.reasons
    assert replay(asked) == asked


@pytest.mark.parametrize(
    "found",
    [
        {"n_active": 3},  # bob and cat are most of the annotators
        {"n_votes_of_all_before": 40},  # they cast most of the votes
        {  # nobody voted before; they cast most of the votes since
            "each": [careless("bob", n_votes_before=0), careless("cat", n_votes_before=0)],
            "n_votes_of_all_before": 0,
            "share_of_votes": 0.6,
        },
        {"each": [careless("bob", probability=0.4), careless("cat", n_votes=0, error=None)]},
    ],
)
def test_carelessness_of_most_people_or_of_nobody_quarantines_nobody(found):
    decision = decide(evidence(caused_by("carelessness", **found)))
    assert (decision.action, decision.remedy, decision.quarantine) == ("fire", "retrain", None)
    assert replay(decision) == decision


def test_two_tastes_wait_for_people_and_name_the_newcomers():
    for params in (TriggerParams(), ASKING):
        decision = decide(evidence(caused_by("newcomers")), params)
        assert held(decision, "newcomers with another taste: eve, fay, from vote 900 on")
        assert decision.quarantine == Quarantine(annotator_ids=("eve", "fay"), from_seq=900)


def test_later_signs_of_a_change_left_to_people_belong_to_it():
    signs = event("ddm", 1060), event("adwin", 1090)
    new = event("ddm", 2100), event("adwin", 2150)
    left = LeftToPeople(decision_id=7, seq=1000)
    waiting = decide(evidence(*signs, left_to_people=left))
    assert held(waiting, "decision 7 waits for a person", "no open or held event")
    assert replay(waiting) == waiting
    assert held(decide(evidence(*new, left_to_people=left)), "decision 7 waits for a person")
    answered = left.model_copy(update={"is_answered": True})
    assert held(decide(evidence(*signs, left_to_people=answered)), "no open or held event")
    fired = decide(evidence(*new, held_events=signs, left_to_people=answered))
    assert (fired.action, fired.event_ids) == ("fire", tuple(each.event_id for each in new))
    reread = answered.model_copy(update={"reread_from": NOW})
    assert decide(evidence(*signs, left_to_people=reread)).action == "fire"
    later = answered.model_copy(update={"reread_from": NOW + timedelta(hours=1)})
    assert held(decide(evidence(*signs, left_to_people=later)), "no open or held event")


def unclear(until_seq: int, **probabilities: float) -> dict[str, Any]:
    """Causes as stored with an event: the probabilities that each explains most."""
    causes = caused_by(next(iter(probabilities)), seq=until_seq).evidence["causes"]
    of_all = [c | {"probability": probabilities.get(c["name"], 0.0)} for c in causes["causes"]]
    return causes | {"causes": of_all}


def test_an_unclear_cause_waits_for_more_votes_up_to_a_limit():
    first = {"causes": unclear(1000, taste=0.6, carelessness=0.4)}
    risen = event("rise_test").model_copy(update={"evidence": first})

    def decide_at(max_seq: int, held: DriftEvent = risen, **params: Any) -> TriggerDecision:
        known = evidence(held_events=(held,), max_seq=max_seq)
        return decide(known, TriggerParams(**{"asks_people": True} | params))

    waiting = decide_at(1100)
    assert held(
        waiting,
        "cause not clear yet (taste 60%, carelessness 40%): answered as it stands after 700 more "
        "votes",
    )
    assert waiting.remedy is None
    assert replay(waiting) == waiting
    assert decide_at(1400).remedy is None  # careless annotators may be behind it
    assert decide_at(1400, min_annotator_certainty=0.5).remedy == "retrain"
    assert decide_at(1800).remedy == "retrain"
    assert decide_at(1100, min_certainty=0.5).remedy is None
    assert decide_at(1100, min_certainty=0.5, min_annotator_certainty=0.5).remedy == "retrain"
    later = first | {"later_causes": [unclear(1150, carelessness=0.97, taste=0.03)]}
    examined = risen.model_copy(update={"evidence": later})
    assert decide_at(1100, examined).remedy is None
    assert decide_at(1150, examined).remedy == "quarantine"


def test_no_model_is_promoted_while_the_cause_of_a_change_is_unclear():
    risen = unclear_rise(1000)

    def wait(max_seq: int, **more: Any) -> str | None:
        return find_unclear_change(evidence(held_events=(risen,), max_seq=max_seq, **more))

    assert str(wait(1100)).startswith("cause not clear yet (taste 60%, carelessness 40%)")
    assert wait(1100, last_fired_at=NOW, n_new_votes=1)  # a cool-down ends before the votes come
    assert "after 400 more votes" in str(wait(1400))
    assert wait(1800) is None
    assert wait(1100, champion="demo.reward_model@2") is None
    people = LeftToPeople(decision_id=1, seq=100, is_answered=False)
    assert wait(1100, left_to_people=people) is None  # they may take as long as they like
    assert find_unclear_change(evidence(event("ddm"), event("adwin"))) is None


def test_carelessness_retrains_only_once_votes_had_time_to_show_another_cause():
    causes = unclear(1000, carelessness=0.99, taste=0.01)
    weak = [c | {"share": c["share"] / 2} for c in causes["causes"]]
    everybody = [c | {"evidence": c["evidence"] | {"n_active": 3}} for c in causes["causes"]]
    for found in (weak, everybody):
        clear = {"causes": causes | {"causes": found}}
        risen = event("rise_test").model_copy(update={"evidence": clear})
        waiting = decide(evidence(risen, max_seq=1010))
        assert held(waiting, "cause not clear yet")
        assert replay(waiting) == waiting
        made = decide(evidence(risen, max_seq=1800))
        assert (made.action, made.remedy) == ("fire", "retrain")


def test_a_rise_that_further_votes_do_not_confirm_is_dismissed():
    def risen(name: str, **probabilities: float) -> DriftEvent:
        first = {"causes": unclear(1000, taste=0.7), "later_causes": []}
        later = [unclear(until, **probabilities) for until in (1200, 1400)]
        return event(name).model_copy(update={"evidence": first | {"later_causes": later}})

    alarm, other = risen("rise_test", taste=0.3, category=0.1), event("ddm", 2000)
    waiting = decide(evidence(alarm, other, max_seq=1399))
    assert held(waiting, "cause not clear yet")
    made = decide(evidence(alarm, other, max_seq=1400, n_new_votes=1))
    assert held(made, "60% likely that errors have not become more frequent")
    assert (made.remedy, made.event_ids) == ("dismiss", (alarm.event_id,))
    assert replay(made) == made
    assert decide(evidence(risen("rise_test", taste=0.51), max_seq=1400)).remedy == "retrain"
    at_once = TriggerParams(max_cause_votes=0)
    assert decide(evidence(alarm, max_seq=1400), at_once).remedy == "retrain"
    pair = risen("hddm_a", taste=0.3), risen("ddm", taste=0.3)
    assert decide(evidence(*pair, max_seq=1400)).remedy == "dismiss"
    assert find_unclear_change(evidence(alarm, max_seq=1400)) is None
    real = risen("ddm", taste=0.8)
    assert decide(evidence(alarm, real, max_seq=1400)).remedy == "retrain"


def test_calibration_that_stays_wrong_is_refitted_alone():
    def failed(day: int) -> DriftEvent:
        return event("slope", 1000 * day, kind="calibration").model_copy(
            update={"day": date(2026, 1, day)}
        )

    assert held(decide(evidence(failed(1), failed(2))), "unconfirmed")
    decision = decide(evidence(failed(1), failed(2), failed(3)))
    assert (decision.action, decision.remedy) == ("fire", "refit_calibrator")
    assert decision.change_seq is None
    assert held(decide(evidence(failed(1), failed(2), failed(20))), "unconfirmed")
    rising = event("hddm_a", 9000)
    assert held(decide(evidence(failed(1), failed(2), failed(3), rising)), "unconfirmed")
    long_ago = rising.model_copy(update={"day": date(2025, 11, 1)})
    assert decide(evidence(long_ago, failed(1), failed(2), failed(3))).action == "fire"


@pytest.mark.parametrize(
    ("probabilities", "remedy"),
    [
        ({"calibration": 0.97}, "refit_calibrator"),
        ({"carelessness": 0.97}, "quarantine"),
        ({"taste": 0.97}, "retrain"),
        ({"taste": 0.6, "carelessness": 0.4}, "refit_calibrator"),
        ({"taste": 0.3}, "refit_calibrator"),
    ],
)
def test_calibration_that_stays_wrong_for_a_clear_reason_is_answered_by_it(probabilities, remedy):
    causes = {"causes": unclear(3000, **probabilities)}
    failed = [
        event("slope", 1000 * day, kind="calibration", change_seq=1000 * day - 90).model_copy(
            update={"day": date(2026, 1, day), "evidence": causes if day == 3 else {}}
        )
        for day in (1, 2, 3)
    ]
    made = decide(evidence(*failed, max_seq=3000))
    assert (made.action, made.remedy) == ("fire", remedy)
    assert made.change_seq == (910 if remedy == "retrain" else None)
    assert replay(made) == made


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


def test_a_change_seen_in_the_cool_down_fires_when_it_is_over_without_a_new_event():
    pair = event("ddm"), event("adwin")
    fired = NOW - timedelta(hours=23)
    assert held(
        decide(evidence(*pair, last_fired_at=fired)),
        "cool-down: last fired 23.0 h ago, 24 h are required",
    )
    later = evidence(held_events=pair, last_fired_at=fired, now=NOW + timedelta(hours=1))
    assert decide(later).action == "fire"


def test_too_few_new_votes_hold():
    assert held(
        decide(evidence(event("ddm"), event("adwin"), n_new_votes=199)),
        "199 new votes since the last retraining, 200 are required",
    )
    assert decide(evidence(event("ddm"), event("adwin"), n_new_votes=200)).action == "fire"


@pytest.mark.parametrize("given", [(event("ddm"), event("adwin")), (event("ddm"),), ()])
def test_a_decision_can_be_made_again_from_its_own_evidence(given):
    decision = decide(evidence(*given), TriggerParams(cool_down_hours=6))
    stored = TriggerDecision.from_json(decision.model_dump_json())
    assert replay(stored) == decision == stored

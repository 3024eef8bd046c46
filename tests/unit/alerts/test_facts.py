"""Facts that rules read of decisions, gates, models, budgets and ticks."""

from datetime import UTC, date, datetime, timedelta

from rlhf_pipeline.alerts import facts
from rlhf_pipeline.alerts.findings import Reading
from rlhf_pipeline.monitoring import MetricPoint
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
TODAY = NOON.date()
UI = "http://127.0.0.1:3000/"
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


def champion_at(moment):
    return Promotion(
        model_name="demo.reward_model",
        version=2,
        previous_version=1,
        data_seq=None,
        reason="r",
        actor="pipeline",
        promoted_at=moment,
    )


def values(decisions, champion=None):
    return [r.value for r in facts.read_drift(decisions, champion, dagster_ui=UI)]


def point(name, value, low=None, high=None, day=TODAY, **labels):
    return MetricPoint(
        day=day,
        name=name,
        labels=labels,
        value=value,
        low=low,
        high=high,
        n=9,
        measured_at=NOON,
    )


def test_a_confirmed_change_names_cause_evidence_and_decision():
    (reading,) = facts.read_drift([decision(run_id="abc")], None, dagster_ui=UI)
    assert reading.detail == "Annotators' taste changed. Decision 1: retrain"
    assert reading.evidence["cause"] == "taste"
    assert reading.evidence["detectors"] == ["ddm", "rise_test"]
    assert reading.link == "http://127.0.0.1:3000/runs/abc"


def test_a_change_is_answered_by_its_retraining_or_a_later_one():
    assert values([decision(state="submitted")]) == [1.0]
    assert values([decision(state="succeeded")]) == [0.0]
    assert values([decision(state="failed"), decision(2)]) == [1.0, 1.0]
    assert values([decision(state="failed"), decision(2, state="succeeded")]) == [0.0, 0.0]


def test_a_change_is_answered_by_a_new_champion():
    held = decision(state="held", action="hold", remedy="quarantine")
    assert values([held], champion_at(NOON)) == [1.0]
    assert values([held], champion_at(NOON + timedelta(hours=2))) == [0.0]


def test_a_change_is_answered_by_a_person():
    held = decision(state="held", action="hold", remedy="quarantine")
    (reading,) = facts.read_drift([held], None, dagster_ui=UI)
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
    assert values([decision(state="held", action="hold", remedy=None)]) == []
    assert values([decision(actor="ada")]) == []


def test_a_refusal_of_the_gate_names_what_failed():
    checks = (
        GateCheck(name="win_rate", passed=False, reason="win rate 0.48 is below 0.5"),
        GateCheck(name="length", passed=True, reason="fine"),
    )
    refused = GateDecision(
        candidate="demo.policy@2", champion="demo.policy@1", promoted=False, checks=checks
    )
    (reading,) = facts.read_gate(refused, dagster_ui=UI)
    assert (reading.value, reading.detail) == (1.0, "win rate 0.48 is below 0.5")
    assert facts.read_gate(None, dagster_ui=UI) == []


def test_the_accuracy_gap_takes_the_best_that_the_intervals_allow():
    points = [
        point("model.accuracy", 0.6, 0.55, 0.65, reward_model="rm@1"),
        point("model.accuracy_ceiling", 0.8, 0.75, 0.85, reward_model="rm@1"),
        point("model.accuracy", 0.5, reward_model="rm@2"),
    ]
    (gap,) = facts.read_accuracy_gap(points)
    assert gap.labels == {"reward_model": "rm@1"}
    assert abs(gap.value - 0.2) < 1e-9
    assert abs(gap.low - 0.1) < 1e-9


def test_todays_spending_counts_against_the_budget():
    points = [
        point("spend.amount", 3.0, lane="a"),
        point("spend.amount", 5.0, lane="b"),
        point("spend.amount", 9.0, day=date(2026, 1, 9), lane="a"),
    ]
    (share,) = facts.read_budget(points, 10.0, NOON)
    assert share.value == 0.8
    assert facts.read_budget(points, None, NOON) == []


def test_nobody_is_idle_while_no_comparison_waits():
    idle = Reading("votes.idle_hours", NOON, 30.0)
    assert facts.leave_out_idle_hours([idle, Reading("queue.open", NOON, 0.0)])[0].value == 0
    assert len(facts.leave_out_idle_hours([idle, Reading("queue.open", NOON, 4.0)])) == 2


def test_silence_is_counted_from_the_last_tick():
    tick = point("daemon.silent_seconds", 0.0)
    later = NOON + timedelta(minutes=10)

    def silence(last, now=later):
        return [r.value for r in facts.read_silence(last, now, expected_s=60)]

    assert silence(tick) == [600.0]
    assert silence(tick, NOON + timedelta(seconds=170)) == [0.0]
    assert silence(None) == []
    assert silence(point("daemon.silent_seconds", None)) == [None]

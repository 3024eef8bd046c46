"""Error stream, detector states, events, and decisions with their transitions."""

from datetime import timedelta

import numpy as np
import pandas as pd
import pytest

from rlhf_pipeline.core.errors import InvalidScores, StoreError
from rlhf_pipeline.core.records import LeftToPeople, Quarantine, TriggerDecision, TriggerEvidence
from rlhf_pipeline.feedback.votes import Quarantines
from rlhf_pipeline.improve.retraining import answers
from tests.unit.store.conftest import NOON

MODEL = "demo.reward_model@1"


def fire(evidence: TriggerEvidence) -> TriggerDecision:
    events = (*evidence.held_events, *evidence.open_events)
    return TriggerDecision(
        action="fire",
        reasons=(f"{len(events)} events",),
        event_ids=tuple(e.event_id for e in events),
        change_seq=min(e.seq for e in events),
        decided_at=evidence.now,
    )


def hold(evidence: TriggerEvidence) -> TriggerDecision:
    return fire(evidence).model_copy(update={"action": "hold"})


@pytest.fixture
def decide(store):
    return lambda rule, at=NOON: store.decisions.apply_rule(rule, now=at, champion=MODEL)


def test_errors_are_those_of_one_model_in_seq_order(
    store, make_comparisons, make_predictions, make_vote
):
    comparisons = make_comparisons(4)
    predictions = pd.concat(
        [
            make_predictions(comparisons).assign(
                score_a=[1.0, 0.0, 0.5, 1.0], score_b=[0.0, 1.0, 0.5, 0.0]
            ),
            make_predictions(comparisons, reward_model="demo.reward_model@2").assign(
                score_a=0.0, score_b=1.0
            ),
        ]
    )
    store.comparisons.publish(comparisons, predictions, published_at=NOON)
    store.comparisons.publish(make_comparisons(1, prefix="unpredicted"), published_at=NOON)
    store.votes.cast_many(
        [
            make_vote("c0"),  # right
            make_vote("c1"),  # wrong
            make_vote("c2", choice="b"),  # equal scores predicted no side
            make_vote("c3", choice="tie"),
            make_vote("unpredicted0"),
            make_vote("c0", "bob", choice="b"),  # wrong
        ]
    )
    errors = store.detectors.errors_of(MODEL)
    assert errors["seq"].tolist() == [1, 2, 6]
    assert errors["error"].tolist() == [0.0, 1.0, 1.0]
    assert errors["day"].tolist() == ["2026-01-01"] * 3
    assert store.detectors.errors_of(MODEL, up_to_seq=2)["seq"].tolist() == [1, 2]
    assert errors["expected_error"].tolist() == np.minimum(errors["p"], 1 - errors["p"]).tolist()
    assert store.detectors.list_annotators(6) == {"ann"}
    assert store.detectors.errors_of("demo.reward_model@2")["error"].tolist() == [
        1.0,
        1.0,
        0.0,
        0.0,
    ]


def test_votes_of_the_model_itself_are_excluded(
    store, make_comparisons, make_predictions, make_vote
):
    """It agrees with itself, which would hide a rise of the error rate."""
    comparisons = make_comparisons(2)
    store.comparisons.publish(comparisons, make_predictions(comparisons), published_at=NOON)
    store.votes.cast_many(
        [make_vote("c0", choice="b"), make_vote("c1", MODEL, annotator_kind="machine")]
    )
    assert store.detectors.errors_of(MODEL)["seq"].tolist() == [1]


def test_superseded_vote_is_not_an_error(store, make_comparisons, make_predictions, make_vote):
    comparisons = make_comparisons(1)
    store.comparisons.publish(comparisons, make_predictions(comparisons), published_at=NOON)
    slip = store.votes.cast(make_vote(choice="b"))
    store.votes.cast(make_vote(choice="a", supersedes=slip.vote_id, idempotency_key="undo"))
    assert store.detectors.errors_of(MODEL)["error"].tolist() == [0.0]


def test_states_are_kept_per_model_and_stream(store):
    store.detectors.record_scan([], MODEL, {"ddm": {"last_seq": 5, "n": 5}})
    store.detectors.record_scan([], MODEL, {"ddm": {"last_seq": 9}}, stream="lengths")
    assert store.detectors.states(MODEL) == {"ddm": {"last_seq": 5, "n": 5}}
    assert store.detectors.states(MODEL, stream="lengths") == {"ddm": {"last_seq": 9}}
    assert store.detectors.states("demo.reward_model@2") == {}


def test_a_scan_is_recorded_once(store, make_event):
    events = [make_event(10), make_event(10, detector="adwin"), make_event(10)]
    states = {"ddm": {"last_seq": 12}}
    assert store.detectors.record_scan(events, MODEL, states) == 2
    assert store.detectors.record_scan(events, MODEL, states) == 0
    assert store.detectors.states(MODEL) == states


def test_a_scan_with_nan_keeps_neither_events_nor_states(store, make_event):
    with pytest.raises(InvalidScores, match=r"Event of ddm on .* at seq 11"):
        store.detectors.record_scan(
            [make_event(10), make_event(11, evidence={"p": float("nan")})],
            MODEL,
            {"ddm": {"last_seq": 12}},
        )
    assert store.events.find_open() == []
    assert store.detectors.states(MODEL) == {}


def test_the_evidence_of_a_stored_event_is_replaced(store, make_event):
    event, other = make_event(10), make_event(20)
    store.events.add([event, other])
    store.events.update(event.model_copy(update={"evidence": {"causes": 1}}))
    assert [e.evidence for e in store.events.find_open()] == [{"causes": 1}, other.evidence]


def test_events_come_back_as_added(store, make_event):
    event = make_event(10, change_seq=4)
    assert (
        store.events.add(
            [event, make_event(5, model_version="demo.reward_model@2", day="2026-01-02")]
        )
        == 2
    )
    assert store.events.add([event]) == 0
    assert store.events.for_model(MODEL) == [event]
    assert store.events.for_days(["2026-01-01"]) == [event]
    assert [e.seq for e in store.events.find_open()] == [5, 10]


def test_replayed_event_is_stored_and_never_decided_on(store, decide, make_event):
    assert store.events.add([make_event(7, is_replayed=True)]) == 1
    assert [event.is_replayed for event in store.events.for_model(MODEL)] == [True]
    assert store.events.find_open() == []
    assert decide(lambda evidence: pytest.fail("nothing is open")) is None


def test_a_fire_claims_the_events_and_waits_for_a_run(store, decide, make_event):
    store.events.add([make_event(10), make_event(12)])
    decision = decide(fire)
    assert (decision.decision_id, decision.state, decision.attempt, decision.change_seq) == (
        1,
        "pending",
        1,
        10,
    )
    assert store.events.find_open() == []
    assert store.training_jobs.pending() == store.decisions.all() == [decision]
    assert decide(fire) is None


def test_held_events_count_until_the_next_fire(store, decide, make_event):
    store.events.add([make_event(10)])
    assert decide(hold).state == "held"
    assert store.training_jobs.pending() == []
    assert decide(hold).decision_id is None  # nothing new to claim, so nothing stored
    assert len(store.decisions.all()) == 1
    store.events.add([make_event(12)])
    evidences = []

    def look_and_fire(evidence):
        evidences.append(evidence)
        return fire(evidence)

    decision = decide(look_and_fire)
    assert [
        [e.seq for e in events] for events in (evidences[0].held_events, evidences[0].open_events)
    ] == [
        [10],
        [12],
    ]
    assert len(decision.event_ids) == 2
    assert decide(fire) is None  # the fire ended both


def test_the_rule_sees_votes_and_time_since_the_last_fire(
    store, decide, make_event, make_comparisons, make_vote
):
    store.comparisons.publish(make_comparisons(5), published_at=NOON)
    store.votes.cast_many([make_vote(f"c{i}") for i in range(3)])
    store.events.add([make_event(3)])
    first, second = [], []
    decide(lambda e: first.append(e) or fire(e))
    store.votes.cast_many([make_vote(f"c{i}") for i in range(3, 5)])
    store.events.add([make_event(5)])
    decide(lambda e: second.append(e) or hold(e), NOON + timedelta(hours=1))
    assert (
        first[0].n_new_votes,
        first[0].last_fired_at,
        first[0].n_unfinished,
        first[0].champion,
    ) == (3, None, 0, MODEL)
    assert (second[0].n_new_votes, second[0].last_fired_at, second[0].n_unfinished) == (2, NOON, 1)
    assert (second[0].max_seq, second[0].now) == (5, NOON + timedelta(hours=1))


def test_a_rule_that_fails_leaves_everything_open(store, decide, make_event):
    store.events.add([make_event()])
    with pytest.raises(ZeroDivisionError):
        decide(lambda evidence: 1 / 0)
    assert len(store.events.find_open()) == 1
    assert decide(fire).decision_id == 1


def test_decision_passes_all_states(store, decide, make_event):
    store.events.add([make_event()])
    decide(fire)
    submitted = store.training_jobs.mark_submitted(1, 1, "run-1")
    assert (submitted.state, submitted.run_id) == ("submitted", "run-1")
    assert store.training_jobs.mark_submitted(1, 1, "run-2") == submitted
    assert store.training_jobs.pending() == []
    assert store.training_jobs.mark_finished(1, succeeded=True).state == "succeeded"
    assert store.training_jobs.mark_finished(1, succeeded=False, error="late").state == "succeeded"
    assert store.training_jobs.retry(1).state == "succeeded"
    assert store.decisions.get(1).reasons == ("1 events",)
    # the change of taste has a link beside the three of the decision
    assert store.audit.verify() == 4


def test_retries_are_attempts_up_to_a_limit(store, decide, make_event):
    store.events.add([make_event()])
    decide(fire)
    for attempt in (1, 2):
        store.training_jobs.mark_submitted(1, attempt, f"run-{attempt}")
        again = store.training_jobs.retry(1, max_attempts=3, attempt=attempt)
        assert (again.state, again.attempt, again.run_id) == ("pending", attempt + 1, None)
        assert store.training_jobs.retry(1, max_attempts=3, attempt=attempt) == again
        assert store.training_jobs.mark_submitted(1, attempt, "old run") == again
        assert store.training_jobs.mark_finished(1, succeeded=False, attempt=attempt) == again
    store.training_jobs.mark_submitted(1, 3, "run-3")
    assert store.training_jobs.mark_finished(1, succeeded=False, error="killed").state == "failed"
    assert store.training_jobs.retry(1, max_attempts=3).state == "failed"
    assert store.decisions.get(1).error == "killed"


def test_a_decision_waits_for_votes(store, decide, make_event):
    store.events.add([make_event()])
    decide(fire)
    store.training_jobs.mark_submitted(1, 1, "run-1")
    for _ in range(2):  # the run may be repeated
        waits = store.training_jobs.postpone(1, attempt=1, until_seq=40, reason="few votes")
        assert (waits.state, waits.attempt, waits.run_id) == ("pending", 2, None)
        assert waits.reasons == ("1 events", "waits until vote 40: few votes")
    assert store.training_jobs.retry(1, attempt=1) == waits
    assert store.decisions.get(1).evidence["wait_until_seq"] == 40


def test_one_of_two_daemons_gets_the_lease(store, decide, make_event):
    store.events.add([make_event()])
    decide(fire)
    minute = timedelta(minutes=1)
    assert store.training_jobs.lease(1, 1, now=NOON, lease=minute)
    assert not store.training_jobs.lease(1, 1, now=NOON + minute / 2, lease=minute)
    assert store.training_jobs.lease(1, 1, now=NOON + minute, lease=minute)  # the first one died
    store.training_jobs.mark_submitted(1, 1, "run-1")
    assert [d.run_id for d in store.training_jobs.submitted()] == ["run-1"]
    assert not store.training_jobs.lease(1, 1, now=NOON + 3 * minute, lease=minute)
    store.training_jobs.retry(1)
    assert not store.training_jobs.lease(1, 1, now=NOON, lease=minute)
    assert store.training_jobs.lease(1, 2, now=NOON, lease=minute)


NAMED = {"quarantine": {"annotator_ids": ["bob"], "from_seq": 8}}


def answer(evidence: TriggerEvidence, remedy: str) -> TriggerDecision:
    return hold(evidence).model_copy(update={"remedy": remedy, "change_seq": None})


def test_events_that_people_answer_are_not_held(store, decide, make_event):
    store.events.add([make_event(10)])
    decide(hold)
    assert decide(lambda e: answer(e, "quarantine")).remedy == "quarantine"
    assert decide(hold) is None, "the answered events count no more"
    store.events.add([make_event(20)])
    evidences = []
    decide(lambda evidence: evidences.append(evidence) or hold(evidence))
    assert [event.seq for event in evidences[0].open_events] == [20]
    assert evidences[0].held_events == ()
    assert [d.remedy for d in store.decisions.all()] == [None, "quarantine", None]
    assert store.audit.verify() > 0


def test_events_that_wait_for_an_answer_are_examined_after_it(store, decide, make_event):
    store.events.add([make_event(10)])
    decide(lambda e: answer(e, "quarantine").model_copy(update={"evidence": NAMED}))
    store.events.add([make_event(900)])
    assert decide(hold).remedy is None
    store.decisions.answer(1, answer_by("nothing"))
    evidences = []
    decide(lambda evidence: evidences.append(evidence) or hold(evidence))
    assert [event.seq for event in evidences[0].held_events] == [900]


def test_rule_receives_questions_about_the_serving_champion(store, decide, make_event):
    store.events.add([make_event(10)])
    evidence = NAMED | {"looked_at": {"champion": MODEL}}
    decide(lambda e: answer(e, "quarantine").model_copy(update={"evidence": evidence}))

    def left(champion=MODEL):
        store.events.add([make_event(20 + len(store.decisions.all()))])
        evidences = []
        store.decisions.apply_rule(
            lambda evidence: evidences.append(evidence) or hold(evidence),
            now=NOON,
            champion=champion,
        )
        return evidences[0].left_to_people

    named = Quarantine.model_validate(NAMED["quarantine"]).annotator_ids
    waiting = LeftToPeople(decision_id=1, seq=0, annotator_ids=named)
    assert left() == (waiting,)
    assert left("demo.reward_model@2") == ()
    store.decisions.answer(1, answer_by("quarantine"))
    assert left() == (waiting.model_copy(update={"is_answered": True, "reread_from": NOON}),)


def test_events_of_another_change_stay_open_beside_a_question(store, decide, make_event):
    first, second = make_event(10), make_event(900)
    store.events.add([first, second])
    details = {"evidence": NAMED, "event_ids": (first.event_id,)}
    decide(lambda e: answer(e, "quarantine").model_copy(update=details))
    store.decisions.answer(1, answer_by("nothing"))
    evidences = []
    decide(lambda evidence: evidences.append(evidence) or hold(evidence))
    assert [event.seq for event in evidences[0].open_events] == [900]
    decide(lambda evidence: evidences.append(evidence) or hold(evidence))
    assert [event.seq for event in evidences[1].held_events] == [900]


BY_HAND = {"reason": "spam", "actor": "ada", "now": NOON}


def answer_by(name: str):
    """The rule that lifts what `name` begins, or does nothing about it."""
    if name == "lift":
        return lambda events, seq: answers.lift(events, **BY_HAND, max_seq=seq)
    return lambda events, seq: answers.answer(events, name, **BY_HAND, max_seq=seq)


def test_decision_is_answered_once_with_its_actor(store, decide, make_event):
    store.events.add([make_event(10)])
    decide(lambda e: answer(e, "quarantine").model_copy(update={"evidence": NAMED}))
    begun = store.decisions.answer(1, answer_by("quarantine"))
    assert (begun.decision_id, begun.answers, begun.state) == (2, 1, "pending")
    with pytest.raises(StoreError, match="Decision 1 was answered already, by decision 2"):
        store.decisions.answer(1, answer_by("nothing"))
    assert Quarantines.from_decisions(store.decisions.fires()) == Quarantines({"bob": 8})
    lifted = store.decisions.answer(2, answer_by("lift"))
    assert store.training_jobs.pending() == [begun, lifted]
    assert not Quarantines.from_decisions(store.decisions.fires())
    with pytest.raises(StoreError, match="Decision 2 was answered already"):
        store.decisions.answer(2, answer_by("lift"))
    who = [(link.actor, link.object_id) for link in store.audit.after(0, limit=9)]
    assert who == [
        ("pipeline", "1"),
        ("ada", "2"),
        ("ada", "3"),
    ]
    assert store.audit.verify() > 0


def test_a_quarantine_by_hand_names_annotators_with_votes(store, make_comparisons, make_vote):
    store.comparisons.publish(make_comparisons(2), published_at=NOON)
    store.votes.cast_many([make_vote("c0", "bob"), make_vote("c1", "ana")])
    with pytest.raises(StoreError, match="bob: no vote from 2 on"):
        store.decisions.fire_by_hand(
            **BY_HAND, quarantine=Quarantine(annotator_ids=("ana", "bob"), from_seq=2)
        )
    store.decisions.fire_by_hand(
        **BY_HAND, quarantine=Quarantine(annotator_ids=("ana",), from_seq=2)
    )
    (begun,) = store.training_jobs.pending()
    assert (begun.remedy, begun.reasons) == ("quarantine", ("by hand: spam",))
    assert Quarantines.from_decisions([begun]) == Quarantines({"ana": 2})

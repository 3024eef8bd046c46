"""What people decide about a change that waits for them, and the end of a quarantine."""

from datetime import UTC, datetime

import pytest

from rlhf_pipeline.core.errors import ConfigurationError
from rlhf_pipeline.core.records import Quarantine, TriggerDecision
from rlhf_pipeline.improve.retraining import answers
from rlhf_pipeline.improve.retraining.answers import find_waiting

NOW = datetime(2026, 1, 6, 12, tzinfo=UTC)
NAMED = Quarantine(annotator_ids=("bob", "cat"), from_seq=900)


def decision(remedy, action="hold", *, number=7, named=NAMED, **more) -> TriggerDecision:
    evidence = {} if named is None else {"quarantine": named.model_dump(mode="json")}
    return TriggerDecision(
        decision_id=number,
        action=action,
        reasons=("r",),
        event_ids=(),
        evidence=evidence,
        remedy=remedy,
        **more,
    )


def answer(waiting, chosen):
    return answers.answer(waiting, chosen, reason="seen", actor="ada", now=NOW, max_seq=1500)


@pytest.mark.parametrize(
    ("asked_remedy", "chosen", "action", "remedy", "change_seq"),
    [
        ("quarantine", "quarantine", "fire", "quarantine", None),
        ("quarantine", "retrain", "fire", "retrain", 900),
        ("quarantine", "nothing", "hold", None, None),
        ("report_two_tastes", "quarantine", "fire", "quarantine", None),
        ("report_two_tastes", "retrain", "fire", "reweight", None),
        ("report_two_tastes", "nothing", "hold", None, None),
        ("ask_for_cause", "retrain", "fire", "retrain", 900),
    ],
)
def test_an_answer_is_a_decision_by_hand(asked_remedy, chosen, action, remedy, change_seq):
    reply = answer(decision(asked_remedy), chosen)
    assert (reply.action, reply.remedy, reply.change_seq) == (action, remedy, change_seq)
    assert (reply.answers, reply.actor, reply.reasons) == (7, "ada", ("by hand: seen",))
    assert reply.quarantine == (NAMED if remedy == "quarantine" else None)
    if action == "fire":
        assert (reply.state, reply.evidence["looked_at"]) == ("pending", {"max_seq": 1500})


@pytest.mark.parametrize(
    ("waiting", "reason"),
    [
        (decision("quarantine", "fire"), "waits for no answer"),
        (decision(None), "waits for no answer"),
        (decision("quarantine", named=None), "names no annotators"),
    ],
)
def test_only_a_pending_decision_with_names_is_confirmed(waiting, reason):
    with pytest.raises(ConfigurationError, match=reason):
        answer(waiting, "quarantine")


def test_a_decision_waits_until_it_is_answered():
    question = decision("report_two_tastes")
    fired, unclear = decision("quarantine", "fire", number=8), decision(None, number=9)
    assert find_waiting([question, fired, unclear]) == [question]
    assert find_waiting([question, answer(question, "nothing")]) == []


def test_only_a_quarantine_is_lifted():
    fired = decision("quarantine", "fire", number=8)
    lifted = answers.lift(fired, reason="they are fine", actor="ada", now=NOW, max_seq=1500)
    assert (lifted.action, lifted.remedy, lifted.answers) == ("fire", "lift_quarantine", 8)
    assert lifted.quarantine == NAMED
    with pytest.raises(ConfigurationError, match="Decision 7 began no quarantine"):
        answers.lift(decision("quarantine"), reason="r", actor="ada", now=NOW, max_seq=1)

"""What people decide about a change that waits for them, and how a quarantine is undone."""

from collections.abc import Sequence
from datetime import datetime
from typing import Any, Literal

from rlhf_pipeline.core.errors import ConfigurationError
from rlhf_pipeline.core.records import TriggerDecision

Answer = Literal["quarantine", "retrain", "nothing"]


def find_waiting(decisions: Sequence[TriggerDecision]) -> list[TriggerDecision]:
    """The decisions that wait for a person's answer, oldest first."""
    answered = {decision.answers for decision in decisions}
    return [
        decision
        for decision in decisions
        if waits(decision) and decision.decision_id not in answered
    ]


def waits(decision: TriggerDecision) -> bool:
    """Whether the trigger left the decision to people; they may have answered it since."""
    is_left = decision.action == "hold" and decision.remedy not in (None, "dismiss")
    return is_left and decision.actor is None


def has_ended(decision: TriggerDecision) -> bool:
    """Whether its retraining is over, so that a person may leave it at that: the gate refused the
    policy, and the present one is to stay.
    """
    is_over = decision.action == "fire" and decision.state == "succeeded"
    return is_over and decision.remedy not in ("quarantine", "lift_quarantine")


def answer(
    question: TriggerDecision,
    chosen: Answer,
    *,
    reason: str,
    actor: str,
    now: datetime,
    max_seq: int,
) -> TriggerDecision:
    """The decision by which a person answers `question`, with the votes up to `max_seq`.

    `quarantine` leaves out the votes that `question` names: those of careless annotators, or of
    newcomers with another taste. `retrain` counts them: careless annotators were none, so that the
    change is one of taste; of two tastes both count alike. `nothing` also ends a change whose
    retraining is over and whose policy does not serve. Raises ConfigurationError if `question`
    waits for nobody, or names nobody for a quarantine.
    """
    number = question.decision_id
    if chosen == "nothing" and has_ended(question):
        return _decide_by_hand("hold", reason, actor, now, answers=number)
    if not waits(question):
        raise ConfigurationError(
            f"Decision {number} waits for no answer: the trigger or a person decided it. "
            "`rlhf triggers list` shows which decisions wait."
        )
    if chosen == "nothing":
        return _decide_by_hand("hold", reason, actor, now, answers=number)
    evidence: dict[str, Any] = {"looked_at": {"max_seq": max_seq}}
    quarantine = question.quarantine
    if chosen == "quarantine":
        if quarantine is None:
            raise ConfigurationError(
                f"Decision {number} names no annotators to leave out. Name them yourself, on the "
                "page Data quality."
            )
        evidence["quarantine"] = quarantine.model_dump(mode="json")
        return _decide_by_hand(
            "fire", reason, actor, now, answers=number, remedy="quarantine", evidence=evidence
        )
    is_one_taste = question.remedy != "report_two_tastes"
    return _decide_by_hand(
        "fire",
        reason,
        actor,
        now,
        answers=number,
        remedy="retrain" if is_one_taste else "reweight",
        change_seq=_date_change(question) if is_one_taste else None,
        evidence=evidence,
    )


def lift(
    fired: TriggerDecision, *, reason: str, actor: str, now: datetime, max_seq: int
) -> TriggerDecision:
    """The decision by which a person ends the quarantine that `fired` began. Raises
    ConfigurationError if it began none.
    """
    quarantine = fired.quarantine
    if fired.action != "fire" or fired.remedy != "quarantine" or quarantine is None:
        raise ConfigurationError(
            f"Decision {fired.decision_id} began no quarantine. `rlhf status` names those that did."
        )
    return _decide_by_hand(
        "fire",
        reason,
        actor,
        now,
        answers=fired.decision_id,
        remedy="lift_quarantine",
        evidence={
            "looked_at": {"max_seq": max_seq},
            "quarantine": quarantine.model_dump(mode="json"),
        },
    )


def _date_change(question: TriggerDecision) -> int:
    """The vote at which the change began; the second rule named nobody from that vote on."""
    quarantine = question.quarantine
    return (
        int(question.evidence["causes"]["change_seq"])
        if quarantine is None
        else quarantine.from_seq
    )


def _decide_by_hand(
    action: Literal["fire", "hold"], reason: str, actor: str, now: datetime, **values: Any
) -> TriggerDecision:
    return TriggerDecision(
        action=action,
        reasons=(f"by hand: {reason}",),
        event_ids=(),
        decided_at=now,
        state="pending" if action == "fire" else "held",
        actor=actor,
        **values,
    )

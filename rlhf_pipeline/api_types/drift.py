"""Drift events, the trigger's decisions about them, and answers to those that wait for a person."""

from collections.abc import Mapping
from datetime import date, datetime
from typing import Annotated, Any, Literal

from pydantic import Field, computed_field

from rlhf_pipeline.api_types.base import Answer, Request
from rlhf_pipeline.records import (
    Cause,
    DriftEvent,
    GateDecision,
    Interval,
    Promotion,
    Quarantine,
    Remedy,
    Text,
    Verdict,
)

VOTES_UNTIL = "Day of the newest vote behind it; null before the first reward model."
CHANGED_AT = "`voted_at` of the vote at which the change is dated."
Reason = Annotated[Text, Field(min_length=1, max_length=1000)]


class DriftEventOut(DriftEvent):
    """One detection of drift or of a calibration that fails, and what became of it."""

    changed_at: datetime | None = Field(description=CHANGED_AT)
    decision_id: int | None = Field(description="The decision that claimed it; null if it waits.")

    @computed_field  # type: ignore[prop-decorator]
    @property
    def event_id(self) -> str:
        return super().event_id


class DriftTest(Answer):
    """One detector or test of a day's drift report."""

    day: date
    space: str
    detector: str
    model_version: str
    verdict: Verdict
    statistic: float | None
    threshold: float | None
    p_value: float | None
    effect: float | None = Field(
        description="Size of the change; of a detector, the rise of errors at its last event."
    )
    n_reference: int
    n_current: int


class DriftTestOut(DriftTest):
    evidence: Mapping[str, Any] = Field(description="The figures behind the verdict.")


class DecisionOut(Answer):
    """One decision of the retraining trigger or of a person."""

    decision_id: int
    decided_at: datetime
    action: Literal["fire", "hold"]
    state: str = Field(description="State in words; `waits for a person` until it is answered.")
    summary: str = Field(description="Cause, its share of the added errors, and what became of it.")
    reasons: tuple[str, ...]
    remedy: Remedy | None
    cause: str | None = Field(description="The likeliest cause; null if none was examined.")
    cause_share: float | None = Field(description="Share of the rise that it explains.")
    cause_probability: float | None = Field(
        description="Probability that it explains most of the rise."
    )
    quarantine: Quarantine | None = Field(
        description="Annotators whose votes are left out, or would be if a person agrees."
    )
    change_seq: int | None
    changed_at: datetime | None = Field(description=CHANGED_AT)
    known_seq: int | None = Field(description="The last vote that the decision knew.")
    n_events: int
    run_id: str | None
    actor: str | None = Field(description="Who decided by hand; null for the trigger.")
    answers: int | None = Field(description="The decision that this one answers.")
    answered_by: int | None = Field(description="The decision that answers this one.")
    actions: tuple[Literal["answer", "lift", "keep"], ...] = Field(
        description="What a person may do about it now."
    )


class ConditionOut(Answer):
    name: str
    required: str
    actual: str
    is_met: bool | None = Field(
        description="null if it was not examined; a decision fires if no condition is unmet."
    )


class SeenEvent(DriftEventOut):
    """An event that the decision saw, and what it counted for."""

    role: str
    figures: Mapping[str, str]


class RiseOut(Answer):
    """By how much a model's error rate changed, and the votes that this was measured on."""

    difference: Interval
    n_before: int
    n_after: int


class GateOut(GateDecision):
    """What the gate decided on a candidate."""

    votes_until: date | None = Field(description=VOTES_UNTIL)
    refused_for: tuple[str, ...] = Field(description="The failed rules, each in a word or two.")
    n_decisions: int = Field(
        default=1, description="How often the gate decided on this candidate, as far as counted."
    )

    @computed_field  # type: ignore[prop-decorator]
    @property
    def verdict(self) -> str:
        return super().verdict

    @property
    def win_rate(self) -> Interval | None:
        """Of the candidate against the champion."""
        return self.evaluation.win_rate if self.evaluation else None

    @property
    def failed_checks(self) -> tuple[str, ...]:
        """Why the failed rules failed."""
        return tuple(check.reason for check in self.checks if not check.passed)


class DecisionDetail(DecisionOut):
    """A decision with everything that it rests on."""

    causes: tuple[Cause, ...]
    rise: RiseOut | None = Field(description="What the causes explain; null where there are none.")
    conditions: tuple[ConditionOut, ...]
    events: tuple[SeenEvent, ...]
    not_explained: str | None = Field(description="Why there are no conditions; null if there are.")
    differences: tuple[str, ...] = Field(
        description="What a replay from the same evidence decides otherwise; empty if nothing."
    )
    gate: GateOut | None


class NewAnswer(Request):
    answer: Literal["quarantine", "retrain", "nothing"] = Field(
        description="quarantine: leave out the votes of the annotators that it names. retrain: "
        "count them, and retrain. nothing: neither."
    )
    reason: Reason


class Lift(Request):
    """Ends a quarantine: its votes count again."""

    reason: Reason


class LeavingOut(Answer):
    """What training loses if an annotator's votes are left out."""

    annotator_id: str
    from_seq: int = Field(description="The first vote that would be left out.")
    n_votes: int = Field(description="Their votes from there on that teach.")
    n_pairs: int = Field(description="Comparisons of these votes, whose pairs change or go.")
    share: float = Field(description="Of all votes of people that teach.")
    decision_id: int | None = Field(
        description="The decision that leaves their votes out now; null while they count."
    )


class NewLeavingOut(Request):
    """Leaves out the votes of an annotator from a vote on."""

    from_seq: int = Field(default=1, ge=1, le=2**62, description="The first vote to leave out.")
    reason: Reason


class Restoring(Request):
    """Ends it: the votes count again."""

    reason: Reason


class VotingPause(Request):
    """Keeps a user from voting, or lets them vote again."""

    is_paused: bool
    reason: Reason


class PromotionOut(Promotion):
    """The last time that a version became champion."""

    votes_until: date | None = Field(description=VOTES_UNTIL)

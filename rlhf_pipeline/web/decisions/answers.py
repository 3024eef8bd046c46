"""What routes of decisions take and return: drift events, gates and answers of people."""

from collections.abc import Mapping
from datetime import date, datetime
from typing import Annotated, Literal

from pydantic import AfterValidator, Field, computed_field

from rlhf_pipeline.core.api_types.base import Answer, RequestBody, refuse_blank
from rlhf_pipeline.core.api_types.project import CHANGED_AT, DecisionOut
from rlhf_pipeline.core.records import Cause, DriftEvent, GateDecision, Interval, Promotion, Text
from rlhf_pipeline.improve.retraining.explanation import Condition

VOTES_UNTIL = "Day of the newest vote behind it; null before the first reward model."


Reason = Annotated[Text, AfterValidator(refuse_blank), Field(min_length=1, max_length=1000)]


class PromotionOut(Promotion):
    """The last time that a version became champion."""

    votes_until: date | None = Field(description=VOTES_UNTIL)


class DriftEventOut(DriftEvent):
    """One detection of drift or of a calibration that fails, and what became of it."""

    changed_at: datetime | None = Field(description=CHANGED_AT)
    decision_id: int | None = Field(description="The decision that claimed it; null if it waits.")

    @computed_field  # type: ignore[prop-decorator]
    @property
    def event_id(self) -> str:
        return super().event_id


class DecisionEvent(DriftEventOut):
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
        """Of the candidate against the champion: by people, where they were asked."""
        return self.people_win_rate or (self.evaluation.win_rate if self.evaluation else None)

    @property
    def failed_checks(self) -> tuple[str, ...]:
        """Why the failed rules failed."""
        return tuple(check.reason for check in self.blocking)


class DecisionDetail(DecisionOut):
    """A decision with everything that it rests on."""

    causes: tuple[Cause, ...]
    rise: RiseOut | None = Field(description="What the causes explain; null if unknown.")
    conditions: tuple[Condition, ...]
    events: tuple[DecisionEvent, ...]
    not_explained: str | None = Field(description="Why there are no conditions; null if there are.")
    gate: GateOut | None


class Justification(RequestBody):
    """Why a person does it: lifts a quarantine, or lets votes count again."""

    reason: Reason


class NewAnswer(Justification):
    answer: Literal["quarantine", "retrain", "nothing"] = Field(
        description="quarantine: leave out the votes of the annotators that it names. retrain: "
        "count them, and retrain. nothing: neither."
    )

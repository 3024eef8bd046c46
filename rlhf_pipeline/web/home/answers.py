"""The state of a project as its start page shows it: champions, work and what needs a person."""

from datetime import datetime
from typing import Literal

from pydantic import Field, computed_field

from rlhf_pipeline.core.api_types.base import Answer
from rlhf_pipeline.core.monitoring import MetricPoint
from rlhf_pipeline.core.records import Interval
from rlhf_pipeline.web.decisions.answers import GateOut, PromotionOut


class ChampionState(PromotionOut):
    """A model that serves now."""

    kind: Literal["reward_model", "policy"]
    win_rate: Interval | None = Field(
        default=None,
        description="Of a policy that a gate promoted: over the one before it.",
    )

    @computed_field  # type: ignore[prop-decorator]
    @property
    def label(self) -> str:
        return super().label


class WorkNow(Answer):
    n_votes: int = Field(description="Votes by people, without skips.")
    n_simulated: int = Field(description="Of these, votes by simulated annotators.")
    n_votes_today: int
    n_voting_now: int = Field(description="People who voted within the last 10 minutes.")
    n_open: int = Field(description="Judgements that wait for annotators.")


class Attention(Answer):
    """Something on the start page that needs a person."""

    text: str
    link: str


class Act(Answer):
    """What a person can do about the headline."""

    label: str
    link: str


class Headline(Answer):
    """What happened, what the loop did, and what it waits for."""

    text: str
    tone: Literal["problem", "warning", "good", "info"]
    acts: tuple[Act, ...] = Field(description="What this user can do now, the best first.")


class NextStep(Answer):
    title: str
    text: str
    link: str | None
    is_done: bool


class HomeOut(Answer):
    measured_at: datetime
    headline: Headline
    attention: tuple[Attention, ...] = Field(description="What needs a person beside the headline.")
    next_steps: tuple[NextStep, ...] = Field(description="Empty once there are votes.")
    champions: tuple[ChampionState, ...]
    figures: tuple[MetricPoint, ...] = Field(
        description="Metric points `model.*` of the newest day that has them."
    )
    work: WorkNow
    gate: GateOut | None

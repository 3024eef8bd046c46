"""The state of a project as its start page shows it: stages, champions, work, alerts and drift."""

from datetime import date, datetime
from typing import Literal

from pydantic import Field, computed_field

from rlhf_pipeline.core.api_types.base import Answer
from rlhf_pipeline.core.api_types.project import DecisionOut
from rlhf_pipeline.core.monitoring import Alert, MetricPoint
from rlhf_pipeline.core.records import Interval
from rlhf_pipeline.web.automations import Automation
from rlhf_pipeline.web.decisions.answers import GateOut, PromotionOut
from rlhf_pipeline.web.readiness import DaemonStatus
from rlhf_pipeline.web.runs.routes import SpendingOut


class StageState(Answer):
    """One stage of the loop today."""

    stage: str
    state: Literal["running", "failed", "today", "earlier", "never"] = Field(
        description="`today` and `earlier`: made then; `failed`: a run failed today and the stage "
        "was not made after midnight (UTC)."
    )
    made_at: datetime | None = Field(description="When its newest file was written.")
    day: date | None = Field(description="Newest day that was made; null for stages without days.")
    note: str = Field(description="Rows of that file, or what an evaluation or a gate found.")
    n_failed_runs: int = Field(description="Failed runs of its jobs today.")


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
    newest_day: date | None = Field(description="Newest day with votes, by `voted_at`.")
    n_voting_now: int = Field(description="People who voted within the last 10 minutes.")
    n_open: int = Field(description="Judgements that wait for annotators.")
    n_leased: int = Field(description="Judgements in progress.")


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


class NextRun(Answer):
    """What starts next by itself."""

    schedule: Automation | None = Field(
        description="The schedule that is due first; null where none will run."
    )
    hint: str = Field(description="Why nothing starts, and the cure; empty while it does.")
    daemon: DaemonStatus = Field(description="As in `GET readyz`.")


class HomeOut(Answer):
    measured_at: datetime
    headline: Headline
    attention: tuple[Attention, ...] = Field(description="What needs a person beside the headline.")
    next_steps: tuple[NextStep, ...] = Field(description="Empty once there are votes.")
    stages: tuple[StageState, ...]
    next_run: NextRun
    champions: tuple[ChampionState, ...]
    figures: tuple[MetricPoint, ...] = Field(
        description="Metric points `model.*` of the newest day that has them."
    )
    work: WorkNow
    spending: SpendingOut | None = Field(description="Null where nothing was ever spent.")
    alerts: tuple[Alert, ...] | None = Field(
        description="At most 20: the newest open ones, then the newest acknowledged ones; null "
        "without `alerts.read`."
    )
    decision: DecisionOut | None = Field(description="The newest.")
    gate: GateOut | None

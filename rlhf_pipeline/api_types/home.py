"""The state of a project as its start page shows it: stages, champions, work, alerts and drift."""

from datetime import date, datetime
from typing import Literal

from pydantic import Field

from rlhf_pipeline.api_types.base import Answer
from rlhf_pipeline.api_types.project import DaemonStatus
from rlhf_pipeline.api_types.runs import AutomationOut
from rlhf_pipeline.monitoring import Alert, MetricPoint
from rlhf_pipeline.records import Interval

VOTES_UNTIL = "Day of the newest vote behind it; null before the first reward model."
CHANGED_AT = "`voted_at` of the vote at which the change is dated."


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


class PromotionOut(Answer):
    """The last time that a version became champion."""

    promoted_at: datetime
    votes_until: date | None = Field(description=VOTES_UNTIL)
    reason: str
    actor: str


class ChampionState(PromotionOut):
    """A model that serves now."""

    kind: Literal["reward_model", "policy"]
    label: str


class LastDecision(Answer):
    """What the trigger, or a person, decided last."""

    decision_id: int
    action: Literal["fire", "hold"]
    state: str
    summary: str = Field(description="Cause, its share of the added errors, and what became of it.")
    reasons: tuple[str, ...]
    change_seq: int | None
    changed_at: datetime | None = Field(description=CHANGED_AT)
    decided_at: datetime


class LastGate(Answer):
    candidate: str
    champion: str
    verdict: str
    win_rate: Interval | None = Field(description="Of the candidate against the champion.")
    failed_checks: tuple[str, ...]
    refused_for: tuple[str, ...] = Field(description="The failed rules, each in a word or two.")
    votes_until: date | None = Field(description=VOTES_UNTIL)
    decided_at: datetime


class WorkNow(Answer):
    n_votes: int = Field(description="Votes by people, without skips.")
    n_simulated: int = Field(description="Of these, votes by simulated annotators.")
    n_votes_today: int
    newest_day: date | None = Field(description="Newest day with votes, by `voted_at`.")
    n_voting_now: int = Field(description="People who voted within the last 10 minutes.")
    n_open: int = Field(description="Judgements that wait for annotators.")
    n_leased: int = Field(description="Judgements in progress.")


class SpendingNow(Answer):
    """Cost of generation, as the prices in rlhf.yaml state it."""

    today: float
    days_30: float


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

    schedule: AutomationOut | None = Field(
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
    spending: SpendingNow | None = Field(description="Null where nothing was ever spent.")
    alerts: tuple[Alert, ...] | None = Field(
        description="At most 20: the newest open ones, then the newest acknowledged ones; null "
        "without `alerts.read`."
    )
    decision: LastDecision | None = Field(description="The newest.")
    gate: LastGate | None

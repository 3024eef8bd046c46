"""Runs of the loop, its schedules and sensors, its spending and its settings."""

from datetime import datetime
from typing import Literal

from pydantic import Field

from rlhf_pipeline.api_types.base import Answer
from rlhf_pipeline.api_types.filters import RecordedState
from rlhf_pipeline.api_types.project import DaemonStatus
from rlhf_pipeline.automations import Automation
from rlhf_pipeline.effective_settings import EffectiveSetting, LoopParameter
from rlhf_pipeline.monitoring import MetricPoint
from rlhf_pipeline.store.dagster_runs import PipelineRun

RunState = Literal[RecordedState, "lost"]


class RunOut(PipelineRun):
    """One run of a job; `__ASSET_JOB`: stages chosen by hand in Dagster."""

    state: RunState = Field(description="`lost`: its process no longer sends heartbeats.")
    duration_s: float | None = Field(description="Until its end, or until now.")
    link: str = Field(description="The run in Dagster.")


class AutomationsOut(Answer):
    """Schedules and sensors, and whether anything evaluates them."""

    measured_at: datetime
    daemon: DaemonStatus = Field(
        description="As in `GET readyz`: Dagster's daemon or `rlhf loop`, by the last tick of a "
        "sensor."
    )
    last_tick_at: datetime | None
    hint: str = Field(description="Why nothing runs, and the cure; empty while it does.")
    items: tuple[Automation, ...] = Field(description="Schedules as they are due, then sensors.")


class SpendingOut(Answer):
    """Money spent on generation, in the currency of the prices."""

    today: float
    this_month: float = Field(description="Since the first of the month (UTC).")
    days_30: float
    budget_per_day: float | None = Field(
        description="The least daily budget that is set, as the alert `spend` reads it; null "
        "without one."
    )
    days: tuple[MetricPoint, ...] = Field(
        description="Metric points `spend.amount` of the last 30 days, newest first."
    )


class PartOut(Answer):
    """One part of the loop settings."""

    name: str
    parameters: tuple[LoopParameter, ...]


class SettingsOut(Answer):
    """Settings of the web app's process, and the loop settings that the next run uses."""

    file: str | None = Field(description="The settings file; null without one.")
    problem: str = Field(description="What is wrong with the file; empty if nothing is.")
    version: int = Field(description="Version of the loop settings that a run used last.")
    pending: tuple[str, ...] = Field(description="What the next run changes from that version.")
    settings: tuple[EffectiveSetting, ...]
    parts: tuple[PartOut, ...] = Field(description="Empty while the file is invalid.")

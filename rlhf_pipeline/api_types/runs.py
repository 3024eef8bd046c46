"""Runs of the loop, its schedules and sensors, its spending and its settings."""

from datetime import date, datetime
from typing import Literal

from pydantic import Field

from rlhf_pipeline.api_types.base import Answer
from rlhf_pipeline.api_types.project import DaemonStatus

RecordedState = Literal["queued", "running", "cancelling", "succeeded", "failed", "cancelled"]
RunState = Literal[RecordedState, "lost"]


class RunOut(Answer):
    """One run of a job."""

    run_id: str
    job: str = Field(description="`__ASSET_JOB`: stages chosen by hand in Dagster.")
    state: RunState = Field(description="`lost`: its process no longer sends heartbeats.")
    day: str | None = Field(description="Its day, or `first to last` for several.")
    started_by: str | None = Field(description="Schedule or sensor; null: a person.")
    created_at: datetime
    started_at: datetime | None
    ended_at: datetime | None
    duration_s: float | None = Field(description="Until its end, or until now.")
    link: str = Field(description="The run in Dagster.")


class AutomationOut(Answer):
    """A schedule or sensor of the loop."""

    name: str
    kind: Literal["schedule", "sensor"]
    purpose: str
    job: str | None = Field(description="Of a schedule: the job that it starts.")
    every_s: int | None = Field(description="Of a sensor: least seconds between two ticks.")
    is_on: bool
    last_at: datetime | None = Field(
        description="Of a schedule its last run, of a sensor its last tick by the daemon."
    )
    next_at: datetime | None = Field(
        description="Null where it is off, or where nothing evaluates it."
    )


class AutomationsOut(Answer):
    """Schedules and sensors, and whether anything evaluates them."""

    measured_at: datetime
    daemon: DaemonStatus = Field(
        description="As in `GET readyz`: Dagster's daemon or `rlhf loop`, by the last tick of a "
        "sensor."
    )
    last_tick_at: datetime | None
    hint: str = Field(description="Why nothing runs, and the cure; empty while it does.")
    items: tuple[AutomationOut, ...] = Field(description="Schedules as they are due, then sensors.")


class DaySpending(Answer):
    """Money spent on generation during a day, in the currency of the prices."""

    day: date
    lane: str
    amount: float


class SpendingOut(Answer):
    """Money spent on generation, in the currency of the prices."""

    today: float
    this_month: float = Field(description="Since the first of the month (UTC).")
    days_30: float
    budget_per_day: float | None = Field(
        description="The least daily budget that is set, as the alert `spend` reads it; null "
        "without one."
    )
    days: tuple[DaySpending, ...] = Field(description="The last 30 days, newest first.")


class SettingOut(Answer):
    name: str
    value: str = Field(description="`-` for none; secrets are not shown.")
    default: str
    source: Literal["default", "environment", "file", "home", "program"] = Field(
        description="`file`: rlhf.yaml; `home`: project.json; `program`: set by the program, or "
        "when it started."
    )
    meaning: str


class ParameterOut(Answer):
    name: str
    value: str
    default: str
    is_set: bool = Field(description="Whether rlhf.yaml sets it.")
    meaning: str


class PartOut(Answer):
    """One part of the loop settings."""

    name: str
    parameters: tuple[ParameterOut, ...]


class SettingsOut(Answer):
    """Settings of the web app's process, and the loop settings that the next run uses."""

    file: str | None = Field(description="The settings file; null without one.")
    problem: str = Field(description="What is wrong with the file; empty if nothing is.")
    version: int = Field(description="Version of the loop settings that a run used last.")
    pending: tuple[str, ...] = Field(description="What the next run changes from that version.")
    settings: tuple[SettingOut, ...]
    parts: tuple[PartOut, ...] = Field(description="Empty while the file is invalid.")

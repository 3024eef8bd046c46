"""The schedules and sensors of the loop: what each starts, whether it is on, when it runs next."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, time, timedelta
from typing import Literal

from pydantic import Field

from rlhf_pipeline.core.config import Settings
from rlhf_pipeline.core.records import Record
from rlhf_pipeline.improve.loop_settings import ScheduleParams
from rlhf_pipeline.store.dagster_runs import AutomationState


@dataclass(frozen=True)
class Schedule:
    """Starts a job once a day, at the time `parameter` of the loop settings."""

    name: str
    parameter: str
    job: str


@dataclass(frozen=True)
class Sensor:
    """Looks every few seconds whether there is something to do. `is_quick` ones tick every
    `sensor_seconds`, the others every `slow_sensor_seconds`.
    """

    name: str
    purpose: str
    is_quick: bool = False


SCHEDULES = (
    Schedule("close_yesterday", "close_yesterday", "feedback"),
    Schedule("housekeeping_nightly", "housekeeping", "housekeeping"),
    Schedule("collection_morning", "collection", "collection"),
    Schedule("simulated_voting_daily", "simulated_voting", "simulated_voting"),
)
SENSORS = (
    Sensor("votes", "Starts the feedback of days with new votes", is_quick=True),
    Sensor("retraining", "Decides on drift, and starts what it decided", is_quick=True),
    Sensor("learning", "Starts a fit of the reward model after enough votes"),
    Sensor("replay", "Replays days of imported votes"),
    Sensor("paused_runs", "Resumes completions that waited, and daily runs of killed commands"),
    Sensor("alerts", "Opens and resolves alerts, and sends their messages"),
)


class Automation(Record):
    """A schedule or sensor as it is now."""

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


def list_automations(
    settings: Settings,
    times: ScheduleParams,
    states: Sequence[AutomationState],
    last_runs: Mapping[str, datetime],
    now: datetime,
    *,
    is_ticking: bool,
) -> list[Automation]:
    """Schedules in the order in which they are due, then sensors. `last_runs` are by schedule;
    `is_ticking` says that a daemon or `rlhf loop` evaluates them.
    """
    switched = {state.name: state.is_on for state in states}
    ticked = {state.name: state.ticked_at for state in states}

    def is_on(name: str) -> bool:
        chosen = switched.get(name)
        return settings.sensors_running if chosen is None else chosen

    schedules = [
        Automation(
            name=each.name,
            kind="schedule",
            purpose=str(ScheduleParams.model_fields[each.parameter].description),
            job=each.job,
            every_s=None,
            is_on=is_on(each.name),
            last_at=last_runs.get(each.name),
            next_at=find_next_time(getattr(times, each.parameter), now)
            if is_ticking and is_on(each.name)
            else None,
        )
        for each in SCHEDULES
        if each.job != "simulated_voting" or settings.annotators == "simulated"
    ]
    sensors = [
        Automation(
            name=each.name,
            kind="sensor",
            purpose=each.purpose,
            job=None,
            every_s=every_s,
            is_on=is_on(each.name),
            last_at=last,
            next_at=max(now, last + timedelta(seconds=every_s))
            if is_ticking and is_on(each.name) and last
            else None,
        )
        for each in SENSORS
        for every_s in [settings.sensor_seconds if each.is_quick else settings.slow_sensor_seconds]
        for last in [ticked.get(each.name)]
    ]
    due = {each.name: find_next_time(getattr(times, each.parameter), now) for each in SCHEDULES}
    return [*sorted(schedules, key=lambda each: due[each.name]), *sensors]


def find_next_time(at: str, now: datetime) -> datetime:
    """The next moment of a daily schedule at `HH:MM` in UTC.

    >>> find_next_time("05:00", datetime.fromisoformat("2026-01-02T05:00:00+00:00")).isoformat()
    '2026-01-03T05:00:00+00:00'
    """
    today = datetime.combine(now.date(), time.fromisoformat(at), now.tzinfo)
    return today if today > now else today + timedelta(days=1)

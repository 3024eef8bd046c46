"""What alerts read of Dagster: failed runs and checks, overdue schedules, idle sensors, old assets.

Runs are read once, in the order of their last change, and their outcome is kept in the sensor's
cursor: a tick without new runs costs one query.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping
from datetime import UTC, date, datetime, timedelta
from typing import Any

import dagster as dg

# the public API has no names for these
from dagster._core.scheduler.instigation import InstigatorType
from dagster._utils.schedules import reverse_cron_string_iterator
from pydantic import BaseModel

from rlhf_pipeline.alerts.readings import Reading
from rlhf_pipeline.monitoring import MetricPoint
from sensors.runs import SCHEDULE_NAME_TAG, describe_failure, is_ours

RUNS_AT_ONCE = 50  # read by one tick; the next one goes on
LOOK_BACK = timedelta(days=3)  # at the first tick
GRACE = timedelta(hours=1)  # from a schedule's time to its run
ENDED = (dg.DagsterRunStatus.SUCCESS, dg.DagsterRunStatus.FAILURE)
DAILY_ASSETS = ("comparisons", "drift_report")  # made every day, with or without votes


class FailedRun(BaseModel):
    """The last run of a job, which failed."""

    run_id: str
    at: datetime
    detail: str


class FailedCheck(BaseModel):
    """The last result of an asset check, which is a failure: of a warning, or of one that stops a
    run.
    """

    run_id: str
    at: datetime
    detail: str
    stops_run: bool


class RunMemory(BaseModel):
    """What the ticks so far have read of Dagster's runs; the cursor of the sensor."""

    since: datetime  # schedules that were due earlier are not expected to have run
    read_until: datetime
    failed_runs: dict[str, FailedRun] = {}
    failed_checks: dict[str, FailedCheck] = {}
    scheduled: dict[str, datetime] = {}  # by schedule, when its last run was made
    day: date | None = None  # of the two counts
    n_failed_runs: dict[str, int] = {}
    n_failed_checks: dict[str, int] = {}

    @classmethod
    def load(cls, cursor: str | None, now: datetime) -> "RunMemory":
        """The memory in a cursor; a new one if there is none or another version wrote it."""
        try:
            if cursor:
                return cls.model_validate_json(cursor)
        except ValueError:
            pass
        return cls(since=now, read_until=now - LOOK_BACK)

    def read_runs(self, context: dg.SensorEvaluationContext, now: datetime) -> None:
        """Take in runs that changed since the last tick."""
        if self.day != now.date():
            self.day, self.n_failed_runs, self.n_failed_checks = now.date(), {}, {}
        records = context.instance.get_run_records(
            dg.RunsFilter(updated_after=self.read_until),
            limit=RUNS_AT_ONCE,
            order_by="update_timestamp",
            ascending=True,
        )
        for record in records:
            self.read_until = record.update_timestamp.astimezone(UTC)
            # `__ASSET_JOB` is what people start by hand in the UI, where they see how it ends.
            if is_ours(context, record.dagster_run) and record.dagster_run.job_name[:2] != "__":
                self._read_run(context.instance, record)

    def _read_run(self, instance: dg.DagsterInstance, record: dg.RunRecord) -> None:
        run = record.dagster_run
        if schedule := run.tags.get(SCHEDULE_NAME_TAG):
            self.scheduled[schedule] = record.create_timestamp.astimezone(UTC)
        if run.status not in ENDED:
            return
        at = record.update_timestamp.astimezone(UTC)
        self._read_checks(instance, run, at)
        if run.status == dg.DagsterRunStatus.SUCCESS:
            self.failed_runs.pop(run.job_name, None)
            return
        detail = describe_failure(instance, run.run_id)
        self.failed_runs[run.job_name] = FailedRun(run_id=run.run_id, at=at, detail=detail)
        if at.date() == self.day:
            _count(self.n_failed_runs, run.job_name)

    def _read_checks(self, instance: dg.DagsterInstance, run: dg.DagsterRun, at: datetime) -> None:
        records = instance.get_records_for_run(
            run.run_id, of_type=dg.DagsterEventType.ASSET_CHECK_EVALUATION
        ).records
        for record in records:
            event = record.event_log_entry.dagster_event
            result: Any = event.event_specific_data if event else None
            name = f"{result.asset_key.to_user_string()}:{result.check_name}"
            if result.passed:
                self.failed_checks.pop(name, None)
                continue
            self.failed_checks[name] = FailedCheck(
                run_id=run.run_id,
                at=at,
                detail=result.description or "the Dagster run shows why",
                stops_run=result.severity == dg.AssetCheckSeverity.ERROR,
            )
            if at.date() == self.day:
                _count(self.n_failed_checks, name)

    def readings(self, dagster_ui: str, hide: Callable[[str], str]) -> Iterator[Reading]:
        """Jobs whose last run failed, and checks whose last result is a failure: 2 for one that
        stops a run, 1 for a warning.
        """
        for job, failed in self.failed_runs.items():
            yield Reading(
                name="runs.last_failed",
                measured_at=failed.at,
                value=1.0,
                labels={"job": job},
                detail=_clean(hide(failed.detail)),
                evidence={"run_id": failed.run_id},
                link=f"{dagster_ui}/runs/{failed.run_id}",
            )
        for check, result in self.failed_checks.items():
            yield Reading(
                name="checks.last_failed",
                measured_at=result.at,
                value=2.0 if result.stops_run else 1.0,
                labels={"check": check},
                detail=_clean(hide(result.detail)),
                evidence={"run_id": result.run_id},
                link=f"{dagster_ui}/runs/{result.run_id}",
            )

    def points(self, now: datetime) -> list[MetricPoint]:
        """Failed runs and checks of the day, by job and check."""
        counted = [
            *(("runs.failed", {"job": job}, n) for job, n in self.n_failed_runs.items()),
            *(("checks.failed", {"check": name}, n) for name, n in self.n_failed_checks.items()),
        ]
        return [_point(name, float(n), now, labels, n=n) for name, labels, n in counted]


def _clean(text: str) -> str:
    """Without NUL and half characters, which an error message of a run may hold."""
    return text.replace("\0", "").encode(errors="replace").decode()


def read_schedules(
    schedules: Iterable[dg.ScheduleDefinition], memory: RunMemory, now: datetime
) -> list[Reading]:
    """1 for each schedule whose last time is over by more than an hour and that made no run since
    the start of that day: `rlhf loop` collects before the time of the schedule. Times before the
    first tick of this memory do not count.
    """
    readings = []
    for schedule in schedules:
        due = next(
            reverse_cron_string_iterator(
                (now - GRACE).timestamp(), str(schedule.cron_schedule), schedule.execution_timezone
            )
        ).astimezone(UTC)
        last = memory.scheduled.get(schedule.name)
        midnight = due.replace(hour=0, minute=0, second=0, microsecond=0)
        is_overdue = due > memory.since and (last is None or last < midnight)
        readings.append(
            Reading(
                name="schedules.overdue",
                measured_at=now,
                value=float(is_overdue),
                labels={"schedule": schedule.name},
                detail=f"due at {due:%Y-%m-%d %H:%M} UTC" if is_overdue else "",
                evidence={"due_at": due.isoformat()},
            )
        )
    return readings


def find_stopped_schedules(instance: dg.DagsterInstance) -> set[str]:
    """Schedules that a person stopped in Dagster."""
    states = instance.all_instigator_state(instigator_type=InstigatorType.SCHEDULE)
    return {state.instigator_name for state in states if not state.is_running}


def measure_sensors(instance: dg.DagsterInstance, now: datetime) -> list[MetricPoint]:
    """Seconds since each running sensor of the daemon last ticked."""
    points = []
    for state in instance.all_instigator_state():
        # only that of a sensor has this
        ticked_at = getattr(state.instigator_data, "last_tick_timestamp", None)
        if state.is_running and ticked_at:
            lag = max(0.0, now.timestamp() - ticked_at)
            labels = {"sensor": state.instigator_name}
            points.append(_point("sensors.lag_seconds", lag, now, labels))
    return points


def measure_freshness(instance: dg.DagsterInstance, now: datetime) -> list[MetricPoint]:
    """Hours since each daily asset was last materialised; nothing before the first time."""
    points = []
    for record in instance.get_asset_records([dg.AssetKey(name) for name in DAILY_ASSETS]):
        made = record.asset_entry.last_materialization
        if made is not None:
            hours = max(0.0, (now.timestamp() - made.timestamp) / 3600)
            asset = record.asset_entry.asset_key.to_user_string()
            points.append(_point("freshness.hours", hours, now, {"asset": asset}))
    return points


def _count(counts: dict[str, int], name: str) -> None:
    counts[name] = counts.get(name, 0) + 1


def _point(
    name: str, value: float, now: datetime, labels: Mapping[str, str], *, n: int = 1
) -> MetricPoint:
    return MetricPoint(day=now.date(), name=name, labels=labels, n=n, value=value, measured_at=now)

"""What alerts read of Dagster: failed runs and checks, idle sensors, old assets."""

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

import dagster as dg

from rlhf_pipeline.application.sensors.runs import describe_failure
from rlhf_pipeline.core.monitoring import MetricPoint
from rlhf_pipeline.watch.alerts.readings import Reading

ENDED = [dg.DagsterRunStatus.SUCCESS, dg.DagsterRunStatus.FAILURE]
DAILY_ASSETS = ("comparisons", "drift_report")  # made every day, with or without votes


@dataclass(frozen=True)
class RunReader:
    """Reads runs and checks of one application. `hide` takes secrets out of error messages."""

    instance: dg.DagsterInstance
    repository: dg.RepositoryDefinition
    dagster_ui: str
    hide: Callable[[str], str]

    def read_jobs(self) -> Iterator[Reading]:
        """1 for each job whose last run failed. Runs that people start by hand in the UI are of
        none: they see how it ends.
        """
        for job in self.repository.get_all_jobs():
            ended_runs = dg.RunsFilter(job_name=job.name, statuses=ENDED)
            for record in self.instance.get_run_records(ended_runs, limit=1):
                run = record.dagster_run
                if run.status == dg.DagsterRunStatus.FAILURE and not job.name.startswith("__"):
                    yield self._reading(
                        "runs.last_failed",
                        1.0,
                        {"job": job.name},
                        (run.run_id, record.update_timestamp),
                        describe_failure(self.instance, run.run_id),
                    )

    def read_checks(self) -> Iterator[Reading]:
        """Checks whose last result is a failure: 2 for one that stops a run, 1 for a warning. None
        for one that the next run has yet to make: an alert about it stays as it is.
        """
        keys = list(self.repository.asset_graph.asset_check_keys)
        records = self.instance.event_log_storage.get_latest_asset_check_execution_by_key(keys)
        for key, record in records.items():
            event = record.event.dagster_event if record.event else None
            result: Any = event.event_specific_data if event else None
            value: float | None = None
            detail = ""
            # a check that has not ended has a plan instead
            if isinstance(result, dg.AssetCheckEvaluation):
                if result.passed:
                    continue
                value = 2.0 if result.severity == dg.AssetCheckSeverity.ERROR else 1.0
                detail = result.description or "the Dagster run shows why"
            yield self._reading(
                "checks.last_failed",
                value,
                {"check": f"{key.asset_key.to_user_string()}:{key.name}"},
                (record.run_id, datetime.fromtimestamp(record.create_timestamp, UTC)),
                detail,
            )

    def _reading(
        self,
        name: str,
        value: float | None,
        labels: Mapping[str, str],
        ended: tuple[str, datetime],
        detail: str,
    ) -> Reading:
        run_id, at = ended
        return Reading(
            name=name,
            measured_at=at.astimezone(UTC),
            value=value,
            labels=labels,
            # an error message may hold NUL and half characters
            detail=self.hide(detail).replace("\0", "").encode(errors="replace").decode(),
            evidence={"run_id": run_id},
            link=f"{self.dagster_ui}/runs/{run_id}",
        )

    def count_failed_runs(self, now: datetime) -> list[MetricPoint]:
        """Failed runs of the day by job."""
        midnight = now.replace(hour=0, minute=0, second=0, microsecond=0)
        failed = [dg.DagsterRunStatus.FAILURE]
        runs = self.instance.get_runs(dg.RunsFilter(statuses=failed, updated_after=midnight))
        counts = Counter(run.job_name for run in runs if not run.job_name.startswith("__"))
        return [_point("runs.failed", n, now, {"job": job}, n=n) for job, n in counts.items()]


def count_failed_checks(checks: Iterable[Reading], now: datetime) -> list[MetricPoint]:
    """1 for each check whose last result is a failure of today."""
    failed = (check for check in checks if check.value is not None)
    today = [check for check in failed if check.measured_at.date() == now.date()]
    return [_point("checks.failed", 1.0, now, check.labels) for check in today]


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
        materialization = record.asset_entry.last_materialization
        if materialization is not None:
            hours = max(0.0, (now.timestamp() - materialization.timestamp) / 3600)
            asset = record.asset_entry.asset_key.to_user_string()
            points.append(_point("freshness.hours", hours, now, {"asset": asset}))
    return points


def _point(
    name: str, value: float, now: datetime, labels: Mapping[str, str], *, n: int = 1
) -> MetricPoint:
    return MetricPoint(day=now.date(), name=name, labels=labels, n=n, value=value, measured_at=now)

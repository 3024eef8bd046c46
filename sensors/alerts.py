"""The alerts sensor: opens, escalates and resolves alerts, and sends their messages.

A confirmed change does not wait for its tick: the retraining sensor reports what it decided.
"""

from datetime import datetime

import dagster as dg

from rlhf_pipeline.application.sensors.run_readings import (
    RunReader,
    count_failed_checks,
    measure_freshness,
    measure_sensors,
)
from rlhf_pipeline.application.sensors.runs import now_of, store_of
from rlhf_pipeline.core.config import Settings
from rlhf_pipeline.reports.words import format_count
from rlhf_pipeline.store import Store
from rlhf_pipeline.watch.alerts.incidents import Step
from rlhf_pipeline.watch.alerts.readings import Reading
from rlhf_pipeline.watch.alerts.rounds import (
    TICK,
    advance_alerts,
    gather_readings,
    read_plan,
    record_tick,
    send_messages,
)
from rlhf_pipeline.watch.metrics import measure_project
from rlhf_pipeline.watch.telemetry.logs import SecretFilter


def alerts_sensor(settings: Settings, status: dg.DefaultSensorStatus) -> dg.SensorDefinition:
    @dg.sensor(
        name="alerts",
        minimum_interval_seconds=settings.slow_sensor_seconds,
        default_status=status,
    )
    def watch(context: dg.SensorEvaluationContext) -> dg.SkipReason:
        """Compares figures with the rules of alerts and sends messages about what changed."""
        store, now = store_of(context, settings), now_of(context)
        step = _advance(context, store, settings, now)
        n_messages = send_messages(store, settings)
        return dg.SkipReason(
            f"{format_count(len(step.changed), 'alert')} changed, "
            f"{format_count(n_messages, 'message')} sent"
        )

    return watch


def _advance(
    context: dg.SensorEvaluationContext,
    store: Store,
    settings: Settings,
    now: datetime,
) -> Step:
    """One round over everything that rules read."""
    instance, repository = context.instance, context.repository_def
    assert repository is not None  # daemon and driver give it
    plan = read_plan(settings)
    runs = RunReader(
        instance, repository, settings.dagster_ui.rstrip("/"), SecretFilter(settings).hide
    )
    # a driver, whose ticks Dagster does not record, passes its clock
    is_daemon = "now" not in (context.resource_defs or {})
    lags = measure_sensors(instance, now) if is_daemon else []
    checks = list(runs.read_checks())
    store.metric_points.put(
        [
            *runs.count_failed_runs(now),
            *count_failed_checks(checks, now),
            *measure_freshness(instance, now),
            *lags,
            *measure_project(store, settings.project, now),
        ]
    )
    readings = [
        *gather_readings(store, settings, plan, now),
        *map(Reading.of_point, lags),
        *runs.read_jobs(),
        *checks,
        # this tick is a sign of life
        Reading(name=TICK, measured_at=now, value=0.0),
    ]
    step = advance_alerts(store, plan, readings, now)
    record_tick(store, now)  # last: a round that fails is no sign of life
    return step

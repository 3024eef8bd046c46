"""The alerts sensor: opens, escalates and resolves alerts, and sends their messages.

A confirmed change does not wait for its tick: the retraining sensor reports what it decided.
"""

from datetime import datetime

import dagster as dg

from rlhf_pipeline.alerts.incidents import Step
from rlhf_pipeline.alerts.readings import Reading
from rlhf_pipeline.alerts.rounds import (
    TICK,
    advance_alerts,
    gather_readings,
    read_plan,
    record_tick,
    send_messages,
)
from rlhf_pipeline.config import Settings
from rlhf_pipeline.metrics import measure_project
from rlhf_pipeline.records import utc_now
from rlhf_pipeline.store import Store
from rlhf_pipeline.telemetry.logs import SecretFilter
from sensors.run_facts import (
    RunFacts,
    count_failed_checks,
    find_stopped_schedules,
    measure_freshness,
    measure_sensors,
)
from sensors.runs import resource_of, store_of


def alerts_sensor(settings: Settings, status: dg.DefaultSensorStatus) -> dg.SensorDefinition:
    @dg.sensor(
        name="alerts",
        minimum_interval_seconds=settings.slow_sensor_seconds,
        default_status=status,
    )
    def watch(context: dg.SensorEvaluationContext) -> dg.SensorResult:
        """Compares figures with the rules of alerts and sends messages about what changed."""
        store, now = store_of(context, settings), resource_of(context, "now", lambda: utc_now)()
        # schedules that were due before the first tick are not expected to have run
        since = datetime.fromisoformat(context.cursor) if context.cursor else now
        step = _advance(context, store, settings, since, now)
        sent = send_messages(store, settings)
        return dg.SensorResult(
            skip_reason=f"{len(step.changed)} alerts changed, {sent} messages sent",
            cursor=since.isoformat(),
        )

    return watch


def _advance(
    context: dg.SensorEvaluationContext,
    store: Store,
    settings: Settings,
    since: datetime,
    now: datetime,
) -> Step:
    """One round over everything that rules read."""
    instance, repository = context.instance, context.repository_def
    assert repository is not None  # daemon and driver give it
    plan = read_plan(settings)
    facts = RunFacts(
        instance, repository, settings.dagster_ui.rstrip("/"), SecretFilter(settings).hide
    )
    is_daemon = _is_daemon(context)
    # `rlhf loop` runs schedules whatever Dagster's UI says of them
    stopped = find_stopped_schedules(instance) if is_daemon else set()
    schedules = [
        each
        for each in repository.schedule_defs
        if settings.sensors_running and each.name not in stopped
    ]
    lags = measure_sensors(instance, now) if is_daemon else []
    checks = list(facts.read_checks())
    store.metric_points.put(
        [
            *facts.count_failed_runs(now),
            *count_failed_checks(checks, now),
            *measure_freshness(instance, now),
            *lags,
            *measure_project(store, settings.project, now),
        ]
    )
    found = [
        *gather_readings(store, settings, plan, now),
        *map(Reading.of_point, lags),
        *facts.read_jobs(),
        *checks,
        *facts.read_schedules(schedules, since, now),
        # this tick is a sign of life
        Reading(name=TICK, measured_at=now, value=0.0),
    ]
    step = advance_alerts(store, plan, found, now)
    record_tick(store, now)  # last: a round that fails is no sign of life
    return step


def _is_daemon(context: dg.SensorEvaluationContext) -> bool:
    """Whether Dagster's daemon ticks, and not a driver, whose ticks Dagster does not record."""
    return "now" not in (context.resource_defs or {})

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
    RunMemory,
    find_stopped_schedules,
    measure_freshness,
    measure_sensors,
    read_schedules,
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
        memory = RunMemory.load(context.cursor, now)
        memory.read_runs(context, now)
        step = _advance(context, store, settings, memory, now)
        sent = send_messages(store, settings)
        return dg.SensorResult(
            skip_reason=f"{len(step.changed)} alerts changed, {sent} messages sent",
            cursor=memory.model_dump_json(exclude_defaults=True),
        )

    return watch


def _advance(
    context: dg.SensorEvaluationContext,
    store: Store,
    settings: Settings,
    memory: RunMemory,
    now: datetime,
) -> Step:
    """One round over everything that rules read."""
    plan = read_plan(settings)
    schedules = read_schedules(_schedules(context, settings), memory, now)
    lags = measure_sensors(context.instance, now) if _is_daemon(context) else []
    points = [
        *memory.points(now),
        *measure_freshness(context.instance, now),
        *lags,
        *measure_project(store, settings.project, now),
    ]
    store.metric_points.put(points)
    found = [
        *gather_readings(store, settings, plan, now),
        *map(Reading.of_point, lags),
        *memory.readings(settings.dagster_ui.rstrip("/"), SecretFilter(settings).hide),
        *schedules,
        # this tick is a sign of life
        Reading(name=TICK, measured_at=now, value=0.0),
    ]
    step = advance_alerts(store, plan, found, now)
    record_tick(store, now)  # last: a round that fails is no sign of life
    return step


def _schedules(
    context: dg.SensorEvaluationContext, settings: Settings
) -> list[dg.ScheduleDefinition]:
    """The schedules that are expected to start runs; not those that a person stopped."""
    repository = context.repository_def
    if repository is None or not settings.sensors_running:
        return []
    # `rlhf loop` runs schedules whatever Dagster's UI says of them
    stopped = find_stopped_schedules(context.instance) if _is_daemon(context) else set()
    return [each for each in repository.schedule_defs if each.name not in stopped]


def _is_daemon(context: dg.SensorEvaluationContext) -> bool:
    """Whether Dagster's daemon ticks, and not a driver, whose ticks Dagster does not record."""
    return "now" not in (context.resource_defs or {})

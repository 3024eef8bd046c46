"""One round of alerts: reads a project's figures, moves its alerts, and sends their messages."""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from typing import cast

from rlhf_pipeline.alerts import changes, readings
from rlhf_pipeline.alerts.channels import channels_of, target_names
from rlhf_pipeline.alerts.delivery import Delivery
from rlhf_pipeline.alerts.evaluation import evaluate
from rlhf_pipeline.alerts.incidents import Notification, Step, acknowledge, advance, resolve
from rlhf_pipeline.alerts.readings import Reading
from rlhf_pipeline.alerts.rules import FACTS, AlertParams, AlertRule, merge_rules
from rlhf_pipeline.config import LOOP, Settings
from rlhf_pipeline.errors import ConfigurationError
from rlhf_pipeline.loop_settings import CompletionsParams, LoopSettings
from rlhf_pipeline.metric_catalogue import LAG
from rlhf_pipeline.monitoring import Alert, MetricPoint
from rlhf_pipeline.parameters import suggest
from rlhf_pipeline.store import Store
from rlhf_pipeline.telemetry.logs import SecretFilter
from rlhf_pipeline.web_servers import find_web_address

TICK = "daemon.silent_seconds"
DAEMON_SILENT, DRIFT = "daemon_silent", "drift"
# The only rules that advance while `alerts` of rlhf.yaml is invalid, and nobody knows the others:
# they report that, and a dead daemon.
WITHOUT_FILE = frozenset({DAEMON_SILENT, "settings_unusable"})
BESIDE = {"model.accuracy", "model.accuracy_ceiling", "spend.amount", readings.OLDEST}


@dataclass(frozen=True)
class AlertPlan:
    """The rules of a project as `rlhf.yaml` has them now, and who receives messages."""

    rules: Mapping[str, AlertRule]
    params: AlertParams
    notification: Notification
    problem: str = ""  # what is wrong with the settings, and what happens meanwhile
    advancing: frozenset[str] | None = None  # rules that an invalid file leaves usable; None: all

    @classmethod
    def read(cls, settings: Settings) -> "AlertPlan":
        problem, params, targets = "", AlertParams(), target_names(settings)
        try:
            params = LoopSettings.read(settings, only="alerts").alerts
        except ConfigurationError as cause:
            problem = f"{cause} Meanwhile alerts of other rules are neither opened nor resolved."
        unknown = sorted({name for level in params.levels for name in level} - set(targets))
        return cls(
            rules=merge_rules(params.rules),
            params=params,
            notification=Notification.of(
                params, targets, project=settings.project, web_url=find_web_address(settings)
            ),
            problem=problem
            or "".join(
                f"{LOOP}.alerts.levels names the target {name!r}, which alert_targets does not "
                f"have. {suggest(name, targets)} Its alerts go to the log meanwhile; a new target "
                "needs a restart."
                for name in unknown[:1]
            ),
            advancing=WITHOUT_FILE if problem else None,
        )


def gather_readings(
    store: Store, settings: Settings, plan: AlertPlan, now: datetime
) -> list[Reading]:
    """What the rules read of settings and store: stored metric points, and facts of decisions,
    gates and spending.
    """
    problem = plan.problem
    try:
        budget = read_budget(settings)
    except ConfigurationError as cause:
        budget, problem = None, f"Nothing starts meanwhile: {cause}"
    # Of sensors that do not run any more there are points, but no reading.
    names = ({rule.reads for rule in plan.rules.values()} | BESIDE) - FACTS.keys() - {TICK, LAG}
    points = store.metric_points.read(sorted(names), since=_find_start(store, plan, now).date())
    found = [
        *map(Reading.of_point, points),
        *_read_changes(store, settings, plan, now),
        *readings.read_gate(store.gates.latest()),
        *readings.read_accuracy_gap(points),
        readings.read_spending(points, budget, now),
        Reading("settings.unusable", now, float(bool(problem)), detail=problem),
    ]
    found = readings.limit_idle_hours(readings.fill_counts(found, now))
    return readings.drop_replaced(found)


def read_budget(settings: Settings) -> float | None:
    """The least daily budget that is set. Raises ConfigurationError for an invalid settings
    file.
    """
    calls = cast(CompletionsParams, LoopSettings.read(settings).params("completions"))
    budgets = [b for b in (calls.budget_per_day, settings.budget_per_day) if b is not None]
    return min(budgets, default=None)


def advance_alerts(
    store: Store,
    settings: Settings,
    plan: AlertPlan,
    found: Sequence[Reading],
    now: datetime,
    *,
    only: Collection[str] | None = None,
) -> Step:
    """Open, escalate and resolve the project's alerts in one transaction with their messages."""
    only = plan.advancing if only is None else only
    rules = [rule for rule in plan.rules.values() if only is None or rule.name in only]
    hide = SecretFilter(settings).hide_in  # an error of a run may quote a key
    hidden = [
        replace(
            r, detail=hide(r.detail), evidence=hide(r.evidence), loop_action=hide(r.loop_action)
        )
        for r in found
    ]
    findings = evaluate(rules, hidden, now)
    return store.alerts.advance(
        lambda alerts, silences, next_id: advance(
            alerts, findings, silences, plan.notification, now, next_id=next_id, only=only
        )
    )


def report_changes(store: Store, settings: Settings, now: datetime) -> Step:
    """Open an alert for each confirmed change that nothing answers yet."""
    plan = AlertPlan.read(settings)
    found = _read_changes(store, settings, plan, now)
    return advance_alerts(store, settings, plan, found, now, only={DRIFT})


def _read_changes(
    store: Store, settings: Settings, plan: AlertPlan, now: datetime
) -> list[Reading]:
    serving = changes.ServingHistory(
        reward_model=store.promotions.champion(settings.reward_model),
        policies=store.promotions.history(f"{settings.project}.policy"),
        gate=store.gates.latest(),
    )
    return changes.read_changes(store.decisions.since(_find_start(store, plan, now)), serving)


def _find_start(store: Store, plan: AlertPlan, now: datetime) -> datetime:
    """From when on figures are read: the oldest alert that has not ended needs its own."""
    days = max(rule.within_days + 1 for rule in plan.rules.values())
    return (store.alerts.oldest_ongoing_at() or now) - timedelta(days=days)


def watch_daemon(store: Store, settings: Settings, now: datetime) -> Step:
    """Open an alert if no sensor has ticked for too long: a dead daemon cannot report itself."""
    plan, silence = AlertPlan.read(settings), read_silence(store, settings, now)
    return advance_alerts(store, settings, plan, silence, now, only={DAEMON_SILENT})


def read_silence(store: Store, settings: Settings, now: datetime) -> list[Reading]:
    """Seconds since a sensor last ticked; nothing before the first tick. A living run is no sign of
    life: it outlives the daemon that launched it.
    """
    last: MetricPoint | None = next(iter(store.metric_points.latest([TICK])), None)
    between = max(settings.sensor_seconds, settings.slow_sensor_seconds)
    return readings.read_silence(last, now, expected_s=between)


def acknowledge_alert(store: Store, alert_id: int, actor: str) -> Alert:
    """Note that somebody takes care of an open alert. Raises NotFound and StoreError."""
    now = store.database.clock.now()
    return store.alerts.change(
        alert_id,
        lambda alert: (acknowledge(alert, actor, now), []),
        actor=actor,
        action="acknowledge",
    )


def resolve_alert(store: Store, settings: Settings, alert_id: int, actor: str) -> Alert:
    """Close an alert by hand and tell its targets. Raises NotFound and StoreError."""
    now, notification = store.database.clock.now(), AlertPlan.read(settings).notification
    return store.alerts.change(
        alert_id,
        lambda alert: resolve(alert, actor, notification, now),
        actor=actor,
        action="resolve",
    )


def send_messages(store: Store, settings: Settings) -> int:
    """Send what waits in the outbox, for a few seconds; returns the number that was delivered."""
    retry_seconds = AlertPlan.read(settings).params.retry_seconds
    channels, clock = channels_of(settings), store.database.clock
    return Delivery(store.alert_messages, channels, clock, retry_seconds).send_due()

"""One round of alerts: reads a project's figures, moves its alerts, and sends their messages."""

import threading
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field, replace
from datetime import datetime, timedelta
from typing import Any, cast

from rlhf_pipeline.alerts import changes, corrections, facts
from rlhf_pipeline.alerts.channels import channels_of, target_names
from rlhf_pipeline.alerts.delivery import DeliveryAttempt, deliver_due
from rlhf_pipeline.alerts.findings import Reading, evaluate
from rlhf_pipeline.alerts.incidents import Notification, acknowledge, advance, resolve
from rlhf_pipeline.alerts.rules import FACTS, AlertParams, AlertRule, RuleChange, merge_rules
from rlhf_pipeline.config import LOOP, Settings
from rlhf_pipeline.errors import ConfigurationError, NotFound, StoreError
from rlhf_pipeline.loop_settings import CompletionsParams, LoopSettings
from rlhf_pipeline.metrics import measure_project
from rlhf_pipeline.monitoring import Alert, MetricPoint
from rlhf_pipeline.parameters import parse_parameters, suggest
from rlhf_pipeline.store import Store
from rlhf_pipeline.store.alerts import AlertStep
from rlhf_pipeline.telemetry.logs import SecretFilter
from rlhf_pipeline.web_servers import find_web_address

TICK = "daemon.silent_seconds"
DAEMON_SILENT, DRIFT = "daemon_silent", "drift"
# The only rules that advance while rlhf.yaml is invalid: they report that, and a dead daemon.
WITHOUT_FILE = frozenset({DAEMON_SILENT, "settings_unusable"})
BUDGET_SHARE = "spend.share"
SEND_SECONDS = 10.0


@dataclass(frozen=True)
class AlertPlan:
    """The rules of a project as they are now, and who receives messages."""

    rules: Mapping[str, AlertRule]
    notification: Notification
    secrets: SecretFilter
    problem: str = ""  # what is wrong with the settings, and what happens meanwhile
    ignored: Mapping[str, str] = field(default_factory=dict)  # by rule, why its edit is not used
    in_file: frozenset[str] = frozenset()  # rules that rlhf.yaml changes
    advancing: frozenset[str] | None = None  # rules that an invalid file leaves usable; None: all

    @classmethod
    def read(cls, settings: Settings, store: Store) -> "AlertPlan":
        """The defaults, changed by `rlhf.yaml`, changed by commands and the API. While the part
        `alerts` of the file is invalid, nobody knows which rules it changes: only those advance
        that report an invalid file or a dead daemon. Without a known budget `spend` waits too.
        """
        problem, params = "", AlertParams()
        try:
            params = read_alert_params(settings)
        except ConfigurationError as cause:
            problem = f"{cause} Meanwhile alerts of other rules are neither opened nor resolved."
        targets = target_names(settings)
        edits = {change.rule: change.given for change in store.alert_rules.all()}
        rules, ignored = _merge(params, edits)
        return cls(
            rules=rules,
            notification=Notification.of(
                params, targets, project=settings.project, web_url=find_web_address(settings)
            ),
            secrets=SecretFilter(settings),
            problem=problem or _describe_unknown_targets(params, targets),
            ignored=ignored,
            in_file=frozenset(params.rules),
            advancing=WITHOUT_FILE if problem else _find_rules_with_budget(settings, rules),
        )

    def days_read(self) -> int:
        """Days within which figures can open an alert."""
        return max(rule.for_days * (rule.within_days + 1) for rule in self.rules.values())


def read_alert_params(settings: Settings) -> AlertParams:
    """The part `alerts` of the settings file as it is now. Raises ConfigurationError."""
    return LoopSettings.read(settings, only="alerts").alerts


def gather_readings(
    store: Store, settings: Settings, plan: AlertPlan, now: datetime, *, budget: float | None = None
) -> list[Reading]:
    """What the rules read of the store: stored metric points, and facts of decisions and gates."""
    since = _find_start(store, plan, now)
    names = {rule.reads for rule in plan.rules.values()} - FACTS.keys() - {TICK}
    names |= {"model.accuracy", "model.accuracy_ceiling", "spend.amount", corrections.OLDEST}
    points = store.metric_points.read(sorted(names), since=since.date())
    readings = [
        *map(Reading.of_point, points),
        *_read_changes(store, settings, plan, now),
        *facts.read_gate(store.gates.latest()),
        *facts.read_accuracy_gap(points),
        *facts.read_budget(points, budget, now),
    ]
    readings = corrections.limit_idle_hours(corrections.fill_counts(readings, now))
    readings = corrections.clear_short_lags(
        readings,
        sensor_seconds=settings.sensor_seconds,
        slow_sensor_seconds=settings.slow_sensor_seconds,
    )
    return corrections.mark_replaced(readings)


def read_budget(settings: Settings) -> float | None:
    """The least daily budget that is set. Raises ConfigurationError for an invalid settings
    file.
    """
    calls = cast(CompletionsParams, LoopSettings.read(settings).params("completions"))
    budgets = [b for b in (calls.budget_per_day, settings.budget_per_day) if b is not None]
    return min(budgets, default=None)


def read_settings_problem(problem: str, now: datetime) -> Reading:
    """1 while something is wrong with the settings; `problem` says what."""
    return Reading("settings.unusable", now, float(bool(problem)), detail=problem)


def advance_alerts(
    store: Store,
    plan: AlertPlan,
    readings: Sequence[Reading],
    now: datetime,
    *,
    only: Collection[str] | None = None,
) -> AlertStep:
    """Open, escalate and resolve the project's alerts in one transaction with their messages."""
    only = plan.advancing if only is None else only
    rules = [rule for rule in plan.rules.values() if only is None or rule.name in only]
    hide = plan.secrets.hide_in  # an error of a run may quote a key
    hidden = [replace(r, detail=hide(r.detail), evidence=hide(r.evidence)) for r in readings]
    findings = evaluate(rules, hidden, now)
    return store.alerts.advance(
        lambda alerts, silences, next_id: advance(
            alerts, findings, silences, plan.notification, now, next_id=next_id, only=only
        )
    )


def report_changes(store: Store, settings: Settings, now: datetime) -> AlertStep:
    """Open an alert for each confirmed change that nothing answers yet."""
    plan = AlertPlan.read(settings, store)
    return advance_alerts(store, plan, _read_changes(store, settings, plan, now), now, only={DRIFT})


def _read_changes(
    store: Store, settings: Settings, plan: AlertPlan, now: datetime
) -> list[Reading]:
    return changes.read_changes(
        store.decisions.since(_find_start(store, plan, now)),
        store.promotions.champion(settings.reward_model),
    )


def _find_start(store: Store, plan: AlertPlan, now: datetime) -> datetime:
    """From when on figures are read: the oldest alert that has not ended needs its own."""
    return (store.alerts.oldest_ongoing_at() or now) - timedelta(days=plan.days_read())


def record_tick(store: Store, now: datetime) -> None:
    """Note that a sensor ticked at `now`."""
    store.metric_points.put([MetricPoint(day=now.date(), name=TICK, value=0.0, measured_at=now)])


@contextmanager
def keep_ticking(store: Store, seconds: float) -> Iterator[None]:
    """Record a tick every `seconds` from a thread while the block runs: a run of `rlhf loop`, which
    evaluates no sensor meanwhile and is alive.
    """
    ended = threading.Event()

    def tick() -> None:
        while not ended.wait(seconds):
            with suppress(StoreError):  # a locked database costs one tick, never the run
                record_tick(store, store.database.clock.now())

    thread = threading.Thread(target=tick, daemon=True, name="ticks")
    thread.start()
    try:
        yield
    finally:
        ended.set()
        thread.join()


def record_end(store: Store, now: datetime) -> None:
    """Note that nobody ticks from `now` on, on purpose: no alert is opened for it."""
    store.metric_points.put([MetricPoint(day=now.date(), name=TICK, measured_at=now)])


def watch_daemon(store: Store, settings: Settings, now: datetime) -> AlertStep:
    """Open an alert if no sensor has ticked for too long: a dead daemon cannot report itself."""
    plan = AlertPlan.read(settings, store)
    silence = read_silence(store, settings, now)
    return advance_alerts(store, plan, silence, now, only={DAEMON_SILENT})


def read_silence(store: Store, settings: Settings, now: datetime) -> list[Reading]:
    """Seconds since a sensor last ticked; nothing before the first tick. A living run is no sign of
    life: it outlives the daemon that launched it.
    """
    last = next(iter(store.metric_points.latest([TICK])), None)
    between = max(settings.sensor_seconds, settings.slow_sensor_seconds)
    return facts.read_silence(last, now, expected_s=between)


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
    now, plan = store.database.clock.now(), AlertPlan.read(settings, store)
    return store.alerts.change(
        alert_id,
        lambda alert: resolve(alert, actor, plan.notification, now),
        actor=actor,
        action="resolve",
    )


def change_rule(
    store: Store, settings: Settings, name: str, change: RuleChange, *, actor: str
) -> AlertRule:
    """Set a rule on top of `rlhf.yaml`; what was set of it before is replaced. Raises
    ConfigurationError for a rule that does not hold together.
    """
    rule = merge_rules(read_alert_params(settings).rules, {name: change})[name]
    store.alert_rules.put(name, change.model_dump(exclude_none=True), actor=actor)
    return rule


def require_rule(store: Store, settings: Settings, name: str) -> AlertRule:
    """Raises NotFound for an unknown rule."""
    rules = AlertPlan.read(settings, store).rules
    if name not in rules:
        raise NotFound(f"There is no rule {name!r}. {suggest(name, rules)}")
    return rules[name]


def send_messages(store: Store, settings: Settings) -> list[DeliveryAttempt]:
    """Send what waits in the outbox, for at most `SEND_SECONDS`."""
    return deliver_due(
        store.alert_messages,
        channels_of(settings),
        store.database.clock,
        max_seconds=SEND_SECONDS,
    )


def measure_now(store: Store, now: datetime) -> None:
    """Store the project's figures of this moment as metric points."""
    store.metric_points.put(measure_project(store, now))


def _merge(
    params: AlertParams, edits: Mapping[str, Mapping[str, Any]]
) -> tuple[dict[str, AlertRule], dict[str, str]]:
    """The rules, and why edits are ignored: those that do not fit any more, such as one of a rule
    that left the file.
    """
    rules = merge_rules(params.rules)
    ignored = {}
    for name, given in edits.items():
        try:
            change = parse_parameters(RuleChange, None, **given)
            rules[name] = merge_rules(params.rules, {name: change})[name]
        except ConfigurationError as cause:
            ignored[name] = (
                f"The change of the rule {name} is ignored: {cause} Set it again with PUT "
                f"/api/v1/alerts/rules/{name}, or remove it with DELETE of the same address."
            )
    return rules, ignored


def _find_rules_with_budget(
    settings: Settings, rules: Mapping[str, AlertRule]
) -> frozenset[str] | None:
    """All rules, as None; those that need no budget while the settings file hides it."""
    try:
        read_budget(settings)
    except ConfigurationError:
        return frozenset(name for name, rule in rules.items() if rule.reads != BUDGET_SHARE)
    return None


def _describe_unknown_targets(params: AlertParams, targets: Sequence[str]) -> str:
    wrong = sorted({name for level in params.levels for name in level} - set(targets))
    if not wrong:
        return ""
    return " ".join(
        f"{LOOP}.alerts.levels names the target {name!r}, which alert_targets does not have. "
        f"{suggest(name, targets)}"
        for name in wrong
    ) + (" Its alerts go to the log meanwhile; a new target needs a restart.")

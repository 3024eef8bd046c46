"""One round of alerts: reads a project's figures, moves its alerts, and sends their messages."""

import logging
import threading
from collections.abc import Callable, Collection, Iterator, Sequence
from contextlib import contextmanager, suppress
from datetime import datetime, timedelta

from rlhf_pipeline.core.config import LOOP, HomeFacts, Settings
from rlhf_pipeline.core.errors import ConfigurationError, DeliveryFailed, PipelineError, StoreError
from rlhf_pipeline.core.metric_catalogue import LAG
from rlhf_pipeline.core.monitoring import AlertMessage, MetricPoint
from rlhf_pipeline.core.parameters import suggest
from rlhf_pipeline.improve.loop_settings import LoopSettings
from rlhf_pipeline.store import Store
from rlhf_pipeline.watch.alerts import readings
from rlhf_pipeline.watch.alerts.changes import read_changes
from rlhf_pipeline.watch.alerts.channels import find_targets, send
from rlhf_pipeline.watch.alerts.delivery import Delivery
from rlhf_pipeline.watch.alerts.incidents import AlertPlan, Step, advance
from rlhf_pipeline.watch.alerts.readings import Reading
from rlhf_pipeline.watch.alerts.rules import STATES, AlertParams, merge_rules

TICK = "daemon.silent_seconds"
DAEMON_SILENT, DRIFT = "daemon_silent", "drift"
# The only rules that advance while `alerts` of rlhf.yaml is invalid, and nobody knows the others:
# they report that, and a dead daemon.
WITHOUT_FILE = frozenset({DAEMON_SILENT, "settings_unusable"})

logger = logging.getLogger(__name__)


def read_plan(settings: Settings) -> AlertPlan:
    problem, params, targets = "", AlertParams(), tuple(find_targets(settings))
    try:
        params = LoopSettings.read(settings, only="alerts").alerts
    except ConfigurationError as cause:
        problem = f"{cause} Meanwhile alerts of other rules are neither opened nor resolved."
    unknown = [name for level in params.levels for name in level if name not in targets]
    return AlertPlan(
        rules=merge_rules(params.rules),
        params=params,
        targets=targets,
        project=settings.project,
        web_url=settings.web_url,
        problem=problem
        or "".join(
            f"{LOOP}.alerts.levels names the target {name!r}, which alert_targets does not have. "
            f"{suggest(name, targets)} Its alerts go to the log meanwhile; a new target needs a "
            "restart."
            for name in unknown[:1]
        ),
        advancing=WITHOUT_FILE if problem else None,
    )


def gather_readings(
    store: Store, settings: Settings, plan: AlertPlan, now: datetime
) -> list[Reading]:
    """What the rules read of settings and store: stored metric points, and states of decisions,
    gates and spending.
    """
    problem, share, facts = plan.problem, None, HomeFacts.load(settings.home)
    # Of sensors that do not run any more there are points, but no reading.
    names = {rule.reads for rule in plan.rules.values()} - STATES.keys() - {TICK, LAG}
    since = _find_start(store, plan, now)
    points = store.metric_points.read(sorted(names), since=since.date())
    try:
        budget = read_budget(settings)
        spent = store.metric_points.read(["spend.amount"], since=now.date())
        share = sum(p.value or 0 for p in spent) / budget if budget else None
    except ConfigurationError as cause:
        problem = f"Nothing starts meanwhile: {cause}"
    return [
        *map(Reading.of_point, points),
        *_read_changes(store, settings, since),
        *readings.read_gate(store.gates.latest()),
        readings.read_served(facts.served if facts else None, now),
        Reading("spend.share", now, share),
        Reading("settings.unusable", now, float(bool(problem)), detail=problem),
    ]


def read_budget(settings: Settings) -> float | None:
    """The daily budget in rlhf.yaml. Raises ConfigurationError for an invalid file."""
    return LoopSettings.read(settings, only="completions").calls().budget_per_day


def advance_alerts(
    store: Store,
    plan: AlertPlan,
    current: Sequence[Reading],
    now: datetime,
    *,
    only: Collection[str] | None = None,
) -> Step:
    """Open, escalate and resolve the project's alerts in one transaction with their messages."""
    only = plan.advancing if only is None else only
    with store.alerts.advancing() as (alerts, next_id, put):
        step = advance(plan, alerts, current, now, next_id=next_id, only=only)
        put(step.changed, step.messages)
    return step


def report_changes(store: Store, settings: Settings, now: datetime) -> Step:
    """Open an alert for each confirmed change that nothing answers yet."""
    plan = read_plan(settings)
    changes = _read_changes(store, settings, _find_start(store, plan, now))
    return advance_alerts(store, plan, changes, now, only={DRIFT})


def _read_changes(store: Store, settings: Settings, since: datetime) -> list[Reading]:
    session = store.gate_sessions.running()
    return read_changes(
        store.decisions.since(since),
        champion=store.promotions.champion(settings.reward_model),
        policies=store.promotions.history(f"{settings.project}.policy"),
        gate=store.gates.latest(),
        asking=session.terms.decision if session else None,
    )


def _find_start(store: Store, plan: AlertPlan, now: datetime) -> datetime:
    """From when on figures are read: the oldest alert that has not ended needs its own."""
    days = max(rule.within_days + 1 for rule in plan.rules.values())
    return (store.alerts.oldest_ongoing_at() or now) - timedelta(days=days)


def watch_daemon(store: Store, settings: Settings, now: datetime) -> Step:
    """Open an alert if no sensor has ticked for too long: a dead daemon cannot report itself."""
    plan, silence = read_plan(settings), read_silence(store, settings, now)
    return advance_alerts(store, plan, silence, now, only={DAEMON_SILENT})


def read_silence(store: Store, settings: Settings, now: datetime) -> list[Reading]:
    """Seconds since a sensor last ticked; nothing before the first tick. A living run is no sign of
    life: it outlives the daemon that launched it.
    """
    last: MetricPoint | None = next(iter(store.metric_points.latest([TICK])), None)
    between = max(settings.sensor_seconds, settings.slow_sensor_seconds)
    return readings.read_silence(last, now, expected_s=between)


def send_messages(store: Store, settings: Settings) -> int:
    """Send what waits in the outbox, for a few seconds; returns the number that was delivered."""
    targets, clock = find_targets(settings), store.database.clock

    def bring(message: AlertMessage) -> None:
        if message.target not in targets:
            raise DeliveryFailed(f"There is no target {message.target}. Add it to alert_targets.")
        send(settings, targets[message.target], message, clock.now())

    retry_seconds = read_plan(settings).params.retry_seconds
    return Delivery(store.alert_messages, bring, clock, retry_seconds).send_due()


def record_tick(store: Store, now: datetime, *, is_last: bool = False) -> None:
    """Note that a sensor ticked at `now`; the last one, that nobody ticks from then on, on purpose:
    no alert is opened for it.
    """
    value = None if is_last else 0.0
    store.metric_points.put([MetricPoint(day=now.date(), name=TICK, value=value, measured_at=now)])


@contextmanager
def keep_ticking(store: Store, seconds: float) -> Iterator[None]:
    """Record a tick every `seconds` while the block runs: a run of `rlhf loop`, which evaluates no
    sensor meanwhile and is alive.
    """

    def tick() -> None:
        with suppress(StoreError):  # a locked database costs one tick, never the run
            record_tick(store, store.database.clock.now())

    with _repeating(tick, seconds):
        yield


@contextmanager
def watch_alerts(store: Store, settings: Settings) -> Iterator[None]:
    """Watch the daemon, which the web app outlives, and send messages, as often as the daemon does.
    Each message is leased to one of them.
    """

    def look() -> None:
        try:
            watch_daemon(store, settings, store.database.clock.now())
            send_messages(store, settings)
        except PipelineError as cause:  # such as a busy database: the next look repeats it
            logger.warning("Alerts were not checked: %s", cause)
        except Exception:
            logger.exception("Alerts were not checked")

    with _repeating(look, settings.slow_sensor_seconds):
        yield


@contextmanager
def _repeating(action: Callable[[], None], seconds: float) -> Iterator[None]:
    """Call `action` every `seconds` from a thread while the block runs."""
    ended = threading.Event()

    def run() -> None:
        while not ended.wait(seconds):
            action()

    thread = threading.Thread(target=run, daemon=True, name="alerts")
    thread.start()
    try:
        yield
    finally:
        ended.set()
        thread.join(1)  # a tick that was begun is stored before the caller's next one

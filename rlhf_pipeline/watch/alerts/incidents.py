"""Opens, escalates and resolves alerts by what rules find; knows neither clock nor database."""

from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime, timedelta

from rlhf_pipeline.core.alert_targets import LOG
from rlhf_pipeline.core.errors import AlertState
from rlhf_pipeline.core.metric_catalogue import METRICS
from rlhf_pipeline.core.monitoring import Alert, AlertMessage, MessageKind
from rlhf_pipeline.watch.alerts.messages import build_message
from rlhf_pipeline.watch.alerts.readings import Reading
from rlhf_pipeline.watch.alerts.rules import AlertParams, AlertRule

MODEL_LABELS = ("policy", "reward_model")


@dataclass(frozen=True)
class AlertPlan:
    """The rules of a project as `rlhf.yaml` has them now, and who receives messages."""

    rules: Mapping[str, AlertRule]
    params: AlertParams
    targets: tuple[str, ...]
    project: str = ""
    web_url: str = ""
    problem: str = ""  # what is wrong with the settings, and what happens meanwhile
    advancing: frozenset[str] | None = None  # rules that an invalid file leaves usable; None: all

    @property
    def levels(self) -> list[list[str]]:
        """Groups of targets; without any, all at once. The log stands in for an unknown target, and
        empty groups are passed over.
        """
        groups = self.params.levels or [list(self.targets)]
        levels = [[name if name in self.targets else LOG for name in group] for group in groups]
        return [list(dict.fromkeys(group)) for group in levels if group] or [[]]

    def build(
        self, alert: Alert, kind: MessageKind, targets: Sequence[str], now: datetime
    ) -> list[AlertMessage]:
        return [
            build_message(alert, kind, target, now, project=self.project, web_url=self.web_url)
            for target in targets
        ]


@dataclass
class Step:
    """What one look at the readings changes."""

    changed: list[Alert] = field(default_factory=list)
    messages: list[AlertMessage] = field(default_factory=list)


def advance(
    plan: AlertPlan,
    alerts: Sequence[Alert],
    readings: Sequence[Reading],
    now: datetime,
    *,
    next_id: int,
    only: Collection[str] | None = None,
) -> Step:
    """The next state of the alerts whose condition has not ended, and the messages about them.

    The figures were read at `now` or later. An alert of a subject without a reading ends: the
    subject is gone or the rule is off. One that was opened after `now` stays: these figures may be
    older than its condition. With `only`, the alerts of other rules stay as they are.
    """
    only = plan.rules.keys() | {alert.rule for alert in alerts} if only is None else only
    active = {(alert.rule, alert.subject): alert for alert in alerts if alert.rule in only}
    moved: list[tuple[Alert | None, Alert]] = []
    step = Step()
    for rule in plan.rules.values():
        for reading in _select(rule, readings, now) if rule.name in only else ():
            alert = active.pop((rule.name, reading.subject), None)
            is_broken = _judge(rule, reading, now)
            if alert is not None:
                moved.append((alert, _move(alert, rule, reading, is_broken, now)))
            elif is_broken:
                moved.append((None, _open(rule, reading, now, next_id)))
                next_id += 1
    reason = "there is no such figure any more, or the rule was changed"
    moved += [
        (alert, _end(alert, reason, now)) for alert in active.values() if alert.opened_at <= now
    ]
    for before, after in moved:
        kind, targets = _find_due(plan, before, after, now)
        noted_alert = after if kind in (None, "resolved") else _note_sent(after, kind, targets, now)
        if noted_alert != before:
            step.changed.append(noted_alert)
        if kind is not None:
            step.messages += plan.build(noted_alert, kind, targets, now)
    return step


def acknowledge(alert: Alert, actor: str, now: datetime) -> Alert:
    """Somebody takes care: no reminders and no escalation. Raises AlertState unless it is open."""
    if alert.state != "open":
        raise AlertState(
            f"Alert {alert.alert_id} is {alert.state}; only an open alert can be acknowledged."
        )
    return alert.model_copy(
        update={"state": "acknowledged", "acknowledged_at": now, "acknowledged_by": actor}
    )


def resolve(alert: Alert, actor: str, now: datetime) -> Alert:
    """Close an alert by hand; it opens again only after its condition has ended once. Raises
    AlertState if it is resolved.
    """
    if alert.state == "resolved":
        raise AlertState(f"Alert {alert.alert_id} is resolved already.")
    return alert.model_copy(update={"state": "resolved", "resolved_at": now, "resolved_by": actor})


def _select(rule: AlertRule, readings: Sequence[Reading], now: datetime) -> Iterator[Reading]:
    """The newest reading of each subject. Of models, only the latest version has one.

    A count of a day without a point is 0; a rule that fires below one compares the day before,
    because each day begins at 0.
    """
    matches = [
        reading
        for reading in sorted(readings, key=lambda r: (r.day, r.measured_at))
        if reading.name == rule.reads and rule.labels.items() <= reading.labels.items()
    ]
    is_count = rule.reads in METRICS and METRICS[rule.reads].is_count_of_day
    last_day = now.date() - timedelta(days=is_count and rule.comparison == "below")
    newest = {match.subject: match for match in matches if match.day <= last_day}
    for reading in newest.values() if rule.is_on else ():
        if is_count and reading.day < last_day:
            yield replace(reading, value=0.0, low=None, high=None, of_day=last_day)
        elif all(reading.labels.get(m) == matches[-1].labels.get(m) for m in MODEL_LABELS):
            yield reading


def _judge(rule: AlertRule, reading: Reading, now: datetime) -> bool | None:
    """Whether the condition is met; None leaves an alert as it is: nothing was measured, or too
    long ago, or the figure lies between the threshold and the value that resolves.
    """
    if reading.value is None:
        return None
    # An estimate opens an alert by its bound and resolves it by itself: else each day with fewer
    # votes would end the incident and the next one open it anew.
    bound = reading.low if rule.comparison == "above" else reading.high
    end = rule.threshold if rule.resolve_at is None else rule.resolve_at
    if not rule.is_beyond(reading.value, end):
        return False
    is_recent = reading.day >= now.date() - timedelta(days=rule.within_days)
    is_beyond = rule.is_beyond(reading.value if bound is None else bound, rule.threshold)
    return True if is_recent and is_beyond else None


def _open(rule: AlertRule, reading: Reading, now: datetime, number: int) -> Alert:
    alert = Alert(
        alert_id=number,
        rule=rule.name,
        subject=reading.subject,
        severity=rule.severity,
        state="pending" if rule.for_minutes else "open",
        title="",
        opened_at=now,
        seen_at=now,
    )
    return _refresh(alert, rule, reading, now)


def _move(
    alert: Alert, rule: AlertRule, reading: Reading, is_broken: bool | None, now: datetime
) -> Alert:
    """The alert after one more reading of its subject, which a later round may have opened."""
    if alert.opened_at > now:
        return alert
    if is_broken is False or (alert.state == "pending" and not is_broken):
        alert = alert.model_copy(update={"loop_action": reading.loop_action or alert.loop_action})
        return _end(alert, reading.detail, now)
    if reading.value is None or alert.state == "resolved":
        return alert
    alert = _refresh(alert, rule, reading, now if is_broken else alert.seen_at)
    lasts = now - alert.opened_at >= timedelta(minutes=rule.for_minutes)
    if alert.state == "pending" and lasts:
        return alert.model_copy(update={"state": "open", "opened_at": now})
    return alert


def _refresh(alert: Alert, rule: AlertRule, reading: Reading, seen_at: datetime) -> Alert:
    """The alert with the latest figures of its condition; a state that holds or not has none."""
    is_measured = rule.reads in METRICS or rule.reads == "spend.share"
    return alert.model_copy(
        update={
            "severity": rule.severity,
            "title": rule.fill_title(reading),
            "detail": reading.detail,
            "progress": reading.progress,
            "loop_action": reading.loop_action or rule.loop_action,
            "next_step": reading.next_step or rule.next_step,
            "value": reading.value if is_measured else None,
            "threshold": rule.threshold if is_measured else None,
            "evidence": dict(reading.evidence),
            "link": reading.link or rule.page,
            "seen_at": seen_at,
        }
    )


def _end(alert: Alert, resolution: str, now: datetime) -> Alert:
    """The condition ended. A pending alert is dropped: the store keeps none that has ended."""
    if alert.state in ("pending", "resolved"):
        return alert.model_copy(update={"ended_at": now})
    resolved = {"state": "resolved", "resolved_at": now, "resolution": resolution, "progress": ""}
    return alert.model_copy(update=resolved | {"ended_at": now})


def _find_due(
    plan: AlertPlan, before: Alert | None, alert: Alert, now: datetime
) -> tuple[MessageKind | None, Sequence[str]]:
    """The message that is due: the end, the first one, the next level, a reminder. Targets that got
    a message receive the end.
    """
    levels, params = plan.levels, plan.params
    if alert.state == "resolved" and before is not None and before.state != "resolved":
        return "resolved", alert.targets
    if alert.state != "open":
        return None, ()
    if alert.notified_at is None or alert.level_at is None:
        return ("opened", levels[0]) if levels[0] else (None, ())
    after = timedelta(minutes=params.escalate_after_minutes)
    if after and alert.level + 1 < len(levels) and now - alert.level_at >= after:
        return "escalated", levels[alert.level + 1]
    pause = timedelta(hours=params.remind_after_hours)
    if pause and now - alert.notified_at >= pause:
        return "reminder", alert.targets
    return None, ()


def _note_sent(
    alert: Alert, kind: MessageKind | None, targets: Sequence[str], now: datetime
) -> Alert:
    return alert.model_copy(
        update={
            "notified_at": now,
            "targets": tuple(dict.fromkeys((*alert.targets, *targets))),
            "level": alert.level + (kind == "escalated"),
            "level_at": alert.level_at if kind == "reminder" else now,
        }
    )

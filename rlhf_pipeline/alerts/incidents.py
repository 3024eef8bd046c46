"""Opens, escalates and resolves alerts by what rules find; knows neither clock nor database."""

from collections.abc import Collection, Sequence
from dataclasses import dataclass, field
from datetime import datetime, timedelta

from rlhf_pipeline.alert_targets import LOG
from rlhf_pipeline.alerts.findings import RuleFinding
from rlhf_pipeline.alerts.messages import build_payload
from rlhf_pipeline.alerts.rules import AlertParams
from rlhf_pipeline.errors import StoreError
from rlhf_pipeline.monitoring import Alert, AlertMessage, MessageKind, Silence
from rlhf_pipeline.records import content_id

SEEN_EVERY = timedelta(minutes=5)  # an open alert is written again at most so often


@dataclass(frozen=True)
class Notification:
    """Who receives messages, and when again."""

    levels: tuple[tuple[str, ...], ...]
    escalate_after: timedelta | None = None
    remind_after: timedelta | None = None
    project: str = ""
    web_url: str = ""

    @classmethod
    def of(
        cls, params: AlertParams, targets: Sequence[str], *, project: str, web_url: str
    ) -> "Notification":
        """The levels of the settings; without any, all targets at once. The log stands in for an
        unknown target.
        """
        chosen = params.levels or [list(targets)]
        levels = [
            tuple(dict.fromkeys(name if name in targets else LOG for name in level))
            for level in chosen
        ]
        minutes, hours = params.escalate_after_minutes, params.remind_after_hours
        return cls(
            levels=tuple(level for level in levels if level),
            escalate_after=timedelta(minutes=minutes) if minutes else None,
            remind_after=timedelta(hours=hours) if hours else None,
            project=project,
            web_url=web_url.rstrip("/"),
        )


@dataclass(frozen=True)
class Step:
    """What one look at the findings changes."""

    changed: tuple[Alert, ...] = ()
    dropped: tuple[int, ...] = ()  # pending alerts whose condition ended in time
    messages: tuple[AlertMessage, ...] = ()

    @property
    def is_empty(self) -> bool:
        return not (self.changed or self.dropped or self.messages)


@dataclass
class _Changes:
    changed: list[Alert] = field(default_factory=list)
    dropped: list[int] = field(default_factory=list)
    messages: list[AlertMessage] = field(default_factory=list)


def advance(
    alerts: Sequence[Alert],
    findings: Sequence[RuleFinding],
    silences: Sequence[Silence],
    notification: Notification,
    now: datetime,
    *,
    next_id: int,
    only: Collection[str] | None = None,
) -> Step:
    """The next state of the alerts whose condition has not ended, and the messages about them.

    The figures were read at `now` or later. An alert of a subject without a finding ends: the
    subject is gone or the rule is off. One that was opened after `now` stays: these figures may be
    older than its condition. With `only`, the alerts of other rules stay as they are.
    """
    changes = _Changes()
    known = {(alert.rule, alert.subject): alert for alert in alerts}
    found = {(finding.rule.name, finding.subject): finding for finding in findings}
    for key, finding in found.items():
        alert = known.get(key)
        if alert is None and finding.status == "broken":
            alert = _open(finding, notification, now, next_id)
            next_id += 1
            _move(changes, None, alert, finding, silences, notification, now)
        elif alert is not None:
            _move(changes, alert, alert, finding, silences, notification, now)
    for key, alert in known.items():
        is_looked_at = only is None or alert.rule in only
        if key not in found and is_looked_at and alert.opened_at <= now:
            _end(changes, alert, "", notification, now)
    return Step(tuple(changes.changed), tuple(changes.dropped), tuple(changes.messages))


def acknowledge(alert: Alert, actor: str, now: datetime) -> Alert:
    """Somebody takes care: no reminders and no escalation. Raises StoreError unless it is open."""
    if alert.state != "open":
        raise StoreError(
            f"Alert {alert.alert_id} is {alert.state}; only an open alert can be acknowledged."
        )
    return alert.model_copy(
        update={"state": "acknowledged", "acknowledged_at": now, "acknowledged_by": actor}
    )


def resolve(
    alert: Alert, actor: str, notification: Notification, now: datetime
) -> tuple[Alert, list[AlertMessage]]:
    """Close an alert by hand; it opens again only after its condition has ended once. Raises
    StoreError if it is resolved.
    """
    if alert.state == "resolved":
        raise StoreError(f"Alert {alert.alert_id} is resolved already.")
    closed = alert.model_copy(
        update={"state": "resolved", "resolved_at": now, "resolved_by": actor}
    )
    return closed, _messages(closed, "resolved", alert.targets, notification, now)


def _open(finding: RuleFinding, notification: Notification, now: datetime, number: int) -> Alert:
    rule = finding.rule
    alert = Alert(
        alert_id=number,
        rule=rule.name,
        subject=finding.subject,
        severity=rule.severity,
        state="pending" if rule.for_minutes else "open",
        title=finding.title,
        opened_at=now,
        seen_at=now,
    )
    return _refresh(alert, finding, now)


def _refresh(alert: Alert, finding: RuleFinding, now: datetime) -> Alert:
    """The alert with the latest figures of its condition."""
    reading = finding.reading
    return alert.model_copy(
        update={
            "severity": finding.rule.severity,
            "title": finding.title,
            "detail": finding.detail,
            "value": reading.value,
            "threshold": finding.rule.threshold,
            "evidence": dict(reading.evidence),
            "link": reading.link or finding.rule.page,
            "seen_at": now,
        }
    )


def _move(
    changes: _Changes,
    stored: Alert | None,
    alert: Alert,
    finding: RuleFinding,
    silences: Sequence[Silence],
    notification: Notification,
    now: datetime,
) -> None:
    status = finding.status
    if status == "kept" or (status != "broken" and alert.state == "pending"):
        latest = alert.model_copy(update={"link": finding.reading.link or alert.link})
        _end(changes, latest, finding.detail, notification, now)
        return
    lasting = timedelta(minutes=finding.rule.for_minutes)
    if alert.state == "pending" and now - alert.opened_at >= lasting:
        alert = _refresh(alert, finding, now)
        alert = alert.model_copy(update={"state": "open", "opened_at": now})
    elif status == "unknown":  # no figure at all leaves the alert as it is
        is_known = finding.reading.value is not None
        if alert.state != "resolved" and is_known and alert.title != finding.title:
            alert = _refresh(alert, finding, alert.seen_at)
    elif alert.state != "resolved" and now - alert.seen_at >= SEEN_EVERY:
        alert = _refresh(alert, finding, now)
    if alert.state == "open" and not any(
        silence.covers(alert.rule, alert.subject, now) for silence in silences
    ):
        alert = _notify(changes, alert, notification, now)
    if alert is not stored:
        changes.changed.append(alert)


def _notify(changes: _Changes, alert: Alert, notification: Notification, now: datetime) -> Alert:
    """Send what is due about an open alert: the first message, the next level, a reminder."""
    levels = notification.levels
    if not levels:
        return alert
    if alert.notified_at is None or alert.level_at is None:
        return _send(changes, alert, "opened", levels[0], notification, now)
    after, again = notification.escalate_after, notification.remind_after
    if after is not None and alert.level + 1 < len(levels) and now - alert.level_at >= after:
        escalated = alert.model_copy(update={"level": alert.level + 1})
        return _send(changes, escalated, "escalated", levels[escalated.level], notification, now)
    if again is not None and now - alert.notified_at >= again:
        return _send(changes, alert, "reminder", alert.targets, notification, now)
    return alert


def _send(
    changes: _Changes,
    alert: Alert,
    kind: MessageKind,
    targets: Sequence[str],
    notification: Notification,
    now: datetime,
) -> Alert:
    """Put messages to `targets` into the changes; returns the alert with what was sent."""
    sent = alert.model_copy(
        update={
            "notified_at": now,
            "targets": tuple(dict.fromkeys((*alert.targets, *targets))),
            "level_at": alert.level_at if kind == "reminder" else now,
        }
    )
    changes.messages += _messages(sent, kind, targets, notification, now)
    return sent


def _end(
    changes: _Changes, alert: Alert, resolution: str, notification: Notification, now: datetime
) -> None:
    """The condition ended. Targets that got a message receive the resolution, silenced or not."""
    if alert.state == "pending":
        changes.dropped.append(alert.alert_id)
        return
    ended = alert.model_copy(update={"ended_at": now})
    if alert.state != "resolved":
        resolved = {"state": "resolved", "resolved_at": now, "resolution": resolution}
        ended = ended.model_copy(update=resolved)
        changes.messages += _messages(ended, "resolved", alert.targets, notification, now)
    changes.changed.append(ended)


def _messages(
    alert: Alert,
    kind: MessageKind,
    targets: Sequence[str],
    notification: Notification,
    now: datetime,
) -> list[AlertMessage]:
    if alert.link and alert.link.startswith("/"):
        alert = alert.model_copy(update={"link": f"{notification.web_url}{alert.link}"})
    payload = build_payload(alert, kind, notification.project, now)
    return [
        AlertMessage(
            message_id="msg_"
            + content_id(
                notification.project, alert.alert_id, kind, target, alert.level, now.isoformat()
            ),
            alert_id=alert.alert_id,
            target=target,
            kind=kind,
            payload=payload,
            created_at=now,
            next_attempt_at=now,
        )
        for target in targets
    ]

"""Opens, escalates and resolves alerts by what rules find; knows neither clock nor database."""

from collections.abc import Collection, Sequence
from dataclasses import dataclass, field
from datetime import datetime, timedelta

from rlhf_pipeline.alert_targets import LOG
from rlhf_pipeline.alerts.evaluation import RuleFinding, make_storable
from rlhf_pipeline.alerts.messages import build_message
from rlhf_pipeline.alerts.rules import AlertParams
from rlhf_pipeline.errors import StoreError
from rlhf_pipeline.monitoring import Alert, AlertMessage, MessageKind, Silence

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
        levels = [
            tuple(dict.fromkeys(name if name in targets else LOG for name in level))
            for level in params.levels or [list(targets)]
        ]
        minutes, hours = params.escalate_after_minutes, params.remind_after_hours
        return cls(
            levels=tuple(level for level in levels if level),
            escalate_after=timedelta(minutes=minutes) if minutes else None,
            remind_after=timedelta(hours=hours) if hours else None,
            project=project,
            web_url=web_url.rstrip("/"),
        )

    def build(
        self, alert: Alert, kind: MessageKind, targets: Sequence[str], now: datetime
    ) -> list[AlertMessage]:
        """Messages about the alert; its path in the web app becomes an address."""
        if alert.link and alert.link.startswith("/"):
            alert = alert.model_copy(update={"link": f"{self.web_url}{alert.link}"})
        return [build_message(alert, kind, target, self.project, now) for target in targets]


@dataclass
class Step:
    """What one look at the findings changes."""

    changed: list[Alert] = field(default_factory=list)
    dropped: list[int] = field(default_factory=list)  # pending alerts whose condition ended in time
    messages: list[AlertMessage] = field(default_factory=list)

    @property
    def is_empty(self) -> bool:
        return not (self.changed or self.dropped or self.messages)


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
    moves = _Moves(silences, notification, now)
    known = {(alert.rule, alert.subject): alert for alert in alerts}
    for finding in findings:
        alert = known.pop((finding.rule.name, finding.subject), None)
        if alert is None and finding.status == "broken":
            moves.apply(None, _open(finding, now, next_id), finding)
            next_id += 1
        elif alert is not None:
            moves.apply(alert, alert, finding)
    for alert in known.values():
        if (only is None or alert.rule in only) and alert.opened_at <= now:
            moves.end(alert, "there is no such figure any more, or the rule was changed")
    return moves.step


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
    return closed, notification.build(closed, "resolved", alert.targets, now)


def _open(finding: RuleFinding, now: datetime, number: int) -> Alert:
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
    reading, rule = finding.reading, finding.rule
    return alert.model_copy(
        update={
            "severity": rule.severity,
            "title": finding.title,
            "detail": make_storable(reading.detail),
            "progress": reading.progress,
            "loop_action": make_storable(reading.loop_action or rule.loop_action),
            "next_step": reading.next_step or rule.next_step,
            "value": reading.value,
            "threshold": rule.threshold,
            "evidence": dict(reading.evidence),
            "link": reading.link or rule.page,
            "seen_at": now,
        }
    )


@dataclass
class _Moves:
    """The moves of one step: each changes one alert and adds the messages about it."""

    silences: Sequence[Silence]
    notification: Notification
    now: datetime
    step: Step = field(default_factory=Step)

    def apply(self, stored: Alert | None, alert: Alert, finding: RuleFinding) -> None:
        status, now = finding.status, self.now
        if status == "kept" or (status != "broken" and alert.state == "pending"):
            loop_action = finding.reading.loop_action or alert.loop_action
            link = finding.reading.link or alert.link
            self.end(
                alert.model_copy(update={"link": link, "loop_action": loop_action, "progress": ""}),
                make_storable(finding.reading.detail),
            )
            return
        lasting = timedelta(minutes=finding.rule.for_minutes)
        has_moved = finding.reading.progress != alert.progress
        if alert.state == "pending" and now - alert.opened_at >= lasting:
            alert = _refresh(alert, finding, now)
            alert = alert.model_copy(update={"state": "open", "opened_at": now})
        elif status == "unknown":  # no figure at all leaves the alert as it is
            is_known = finding.reading.value is not None and alert.state != "resolved"
            if is_known and (has_moved or alert.title != finding.title):
                alert = _refresh(alert, finding, alert.seen_at)
        elif alert.state != "resolved" and (has_moved or now - alert.seen_at >= SEEN_EVERY):
            alert = _refresh(alert, finding, now)
        is_silenced = any(each.covers(alert.rule, alert.subject, now) for each in self.silences)
        if alert.state == "open" and self.notification.levels and not is_silenced:
            alert = self._notify(alert)
        if alert is not stored:
            self.step.changed.append(alert)

    def end(self, alert: Alert, resolution: str) -> None:
        """The condition ended. Targets that got a message receive the resolution, silenced or
        not.
        """
        if alert.state == "pending":
            self.step.dropped.append(alert.alert_id)
            return
        ended = alert.model_copy(update={"ended_at": self.now})
        if alert.state != "resolved":
            resolved = {"state": "resolved", "resolved_at": self.now, "resolution": resolution}
            ended = ended.model_copy(update=resolved)
            self._add(ended, "resolved", alert.targets)
        self.step.changed.append(ended)

    def _notify(self, alert: Alert) -> Alert:
        """Send what is due about an open alert: the first message, the next level, a reminder."""
        levels, now = self.notification.levels, self.now
        if alert.notified_at is None or alert.level_at is None:
            return self._send(alert, "opened", levels[0])
        after, again = self.notification.escalate_after, self.notification.remind_after
        if after is not None and alert.level + 1 < len(levels) and now - alert.level_at >= after:
            escalated = alert.model_copy(update={"level": alert.level + 1})
            return self._send(escalated, "escalated", levels[escalated.level])
        if again is not None and now - alert.notified_at >= again:
            return self._send(alert, "reminder", alert.targets)
        return alert

    def _send(self, alert: Alert, kind: MessageKind, targets: Sequence[str]) -> Alert:
        """Add messages to `targets`; returns the alert with what was sent."""
        sent = alert.model_copy(
            update={
                "notified_at": self.now,
                "targets": tuple(dict.fromkeys((*alert.targets, *targets))),
                "level_at": alert.level_at if kind == "reminder" else self.now,
            }
        )
        self._add(sent, kind, targets)
        return sent

    def _add(self, alert: Alert, kind: MessageKind, targets: Sequence[str]) -> None:
        self.step.messages += self.notification.build(alert, kind, targets, self.now)

"""Builds messages about alerts, and their texts for people, around what the alert says.

An alert's title, what the loop did and what to do next are those of its rule (`rules.RULES`); those
of a change are written in `changes`.
"""

from datetime import datetime
from uuid import uuid4

from rlhf_pipeline.core.monitoring import Alert, AlertMessage, MessageKind

# What a message does not carry: the bookkeeping of sending.
INTERNAL = {"seen_at", "notified_at", "targets", "level", "level_at", "ended_at"}
# What people read, by field of the payload.
LINES = {
    "opened_at": "Since",
    "severity": "Severity",
    "progress": "State",
    "loop_action": "What the loop did",
    "next_step": "What to do next",
    "acknowledged_by": "Acknowledged by",
    "resolved_at": "Resolved",
    "resolved_by": "Resolved by",
    "resolution": "Because",
}


def build_message(
    alert: Alert, kind: MessageKind, target: str, now: datetime, *, project: str, web_url: str
) -> AlertMessage:
    """A message with the alert as it is now: type, timestamp and data, as Standard Webhooks names
    them. The fields are part of the public contract: docs/guides/alerts.md lists them.
    """
    data = {"project": project} | alert.model_dump(mode="json", exclude=INTERNAL)
    if alert.link and alert.link.startswith("/"):
        data["link"] = f"{web_url.rstrip('/')}{alert.link}"
    return AlertMessage(
        message_id=f"msg_{uuid4().hex}",
        alert_id=alert.alert_id or None,
        target=target,
        kind=kind,
        payload={"type": f"alert.{kind}", "timestamp": now.isoformat(), "data": data},
        created_at=now,
        next_attempt_at=now,
    )


def build_test_message(
    target: str, now: datetime, *, project: str, web_url: str = ""
) -> AlertMessage:
    """A message that shows whether a target receives alerts."""
    alert = Alert(
        alert_id=0,
        rule="test",
        subject=target,
        severity="info",
        state="open",
        title="This target receives alerts.",
        link="/alerts",
        opened_at=now,
        seen_at=now,
    )
    return build_message(alert, "test", target, now, project=project, web_url=web_url)


def build_subject(message: AlertMessage) -> str:
    """One line: the project, what happened and the title."""
    data = message.payload["data"]
    word = data["severity"] if message.kind == "opened" else message.kind
    return " ".join(f"[{data['project']}] {word}: {data['title']}".split())


def build_text(message: AlertMessage) -> str:
    """Plain text for people: what happened, since when, how bad it is, what the loop did, what to
    do next, and where to look.
    """
    data = message.payload["data"]
    lines = [f"{words}: {data[name]}" for name, words in LINES.items() if data[name]]
    return "\n".join([data["title"], "", *lines, data["link"] or ""])

"""Builds messages about alerts, and their texts for people."""

from collections.abc import Mapping
from datetime import datetime
from typing import Any
from uuid import uuid4

from rlhf_pipeline.monitoring import Alert, AlertMessage, MessageKind

FIELDS = (
    "alert_id",
    "rule",
    "subject",
    "severity",
    "state",
    "progress",
    "title",
    "detail",
    "loop_action",
    "next_step",
    "value",
    "threshold",
    "evidence",
    "link",
    "opened_at",
    "acknowledged_at",
    "acknowledged_by",
    "resolved_at",
    "resolved_by",
    "resolution",
)
TEST_TITLE = "This target receives alerts."
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
    "cause": "Cause",
}


def build_payload(
    alert: Alert | None, kind: MessageKind, project: str, now: datetime
) -> dict[str, Any]:
    """What a message carries: type, timestamp and data, as Standard Webhooks names them. The fields
    are part of the public contract: docs/monitoring.md lists them.
    """
    known = {} if alert is None else alert.model_dump(mode="json", include=set(FIELDS))
    if "evidence" in known:
        # The reasons of a decision name annotators; the alert's detail says the same in counts.
        known["evidence"] = {k: v for k, v in known["evidence"].items() if k != "reasons"}
    data = {
        "project": project,
        **{name: known.get(name) for name in FIELDS},
        "cause": known.get("evidence", {}).get("cause"),
    }
    return {"type": f"alert.{kind}", "timestamp": now.isoformat(), "data": data}


def build_message(
    alert: Alert | None, kind: MessageKind, target: str, project: str, now: datetime
) -> AlertMessage:
    return AlertMessage(
        message_id=f"msg_{uuid4().hex}",
        alert_id=None if alert is None else alert.alert_id,
        target=target,
        kind=kind,
        payload=build_payload(alert, kind, project, now),
        created_at=now,
        next_attempt_at=now,
    )


def build_test_message(target: str, *, project: str, link: str, now: datetime) -> AlertMessage:
    """A message that shows whether a target receives alerts."""
    message = build_message(None, "test", target, project, now)
    message.payload["data"].update({"title": TEST_TITLE, "severity": "info", "link": link})
    return message


def build_subject(message: AlertMessage) -> str:
    """One line: the project, what happened and the title."""
    data = message.payload["data"]
    word = data["severity"] if message.kind == "opened" else message.kind
    line = " ".join(f"[{data['project']}] {word}: {data['title']}".split())
    return "".join(sign for sign in line if sign.isprintable())


def build_text(message: AlertMessage) -> str:
    """Plain text for people: what happened, since when, how bad it is, what the loop did, what to
    do next, and where to look.
    """
    data = message.payload["data"]
    lines = [str(data["title"]), *filter(None, [find_new_detail(data)]), ""]
    lines += [f"{words}: {data[name]}" for name, words in LINES.items() if data[name]]
    return "\n".join([*lines, *filter(None, [data["link"]])]) + "\n"


def find_new_detail(data: Mapping[str, Any]) -> str:
    """The detail, unless the title contains it."""
    detail = str(data["detail"] or "")
    return "" if " ".join(detail.split()) in str(data["title"]) else detail

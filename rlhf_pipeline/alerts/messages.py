"""Builds messages about alerts, and their texts for people."""

from collections.abc import Iterator, Mapping
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
    "title",
    "detail",
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


def build_test_message(target: str, *, project: str, link: str, now: datetime) -> AlertMessage:
    """A message that shows whether a target receives alerts."""
    payload = build_payload(None, "test", project, now)
    payload["data"] |= {"title": TEST_TITLE, "severity": "info", "link": link}
    return AlertMessage(
        message_id=f"msg_{uuid4().hex}",
        alert_id=None,
        target=target,
        kind="test",
        payload=payload,
        created_at=now,
        next_attempt_at=now,
    )


def build_subject(message: AlertMessage) -> str:
    """One line: the project, what happened and the title."""
    data = message.payload["data"]
    word = data["severity"] if message.kind == "opened" else message.kind
    line = " ".join(f"[{data['project']}] {word}: {data['title']}".split())
    return "".join(sign for sign in line if sign.isprintable())


def build_text(message: AlertMessage) -> str:
    """Plain text for people: what happened, since when, why, and where to look."""
    return "\n".join(_lines(message.payload["data"])) + "\n"


def find_new_detail(data: Mapping[str, Any]) -> str:
    """The detail, unless the title contains it."""
    detail = str(data["detail"] or "")
    return "" if " ".join(detail.split()) in str(data["title"]) else detail


def _lines(data: Mapping[str, Any]) -> Iterator[str]:
    yield str(data["title"])
    if detail := find_new_detail(data):
        yield from ("", detail)
    yield ""
    yield f"Project: {data['project']}"
    if data["rule"] is not None:
        yield f"Rule: {data['rule']}, {data['subject']}"
        yield f"State: {data['state']} ({data['severity']}), opened at {data['opened_at']}"
    if data["acknowledged_by"]:
        yield f"Acknowledged: by {data['acknowledged_by']} at {data['acknowledged_at']}"
    if data["resolved_at"]:
        by = f" by {data['resolved_by']}" if data["resolved_by"] else ""
        yield f"Resolved: at {data['resolved_at']}{by}"
    if data["resolution"]:
        yield f"Resolution: {data['resolution']}"
    if data["value"] is not None:
        limit = "" if data["threshold"] is None else f" (threshold {data['threshold']:g})"
        yield f"Value: {data['value']:g}{limit}"
    for name, value in ({"cause": data["cause"]} | (data["evidence"] or {})).items():
        if value is not None:
            yield f"{str(name).replace('_', ' ').capitalize()}: {value}"
    if data["link"]:
        yield from ("", str(data["link"]))

"""Version 0015: metric points, rules of alerts, alerts, silences and messages."""

from datetime import datetime
from typing import Any

import sqlalchemy as sa
from alembic import op

revision = "0015"
down_revision = "0014"

SCOPE = ("organization_id", "project_id")


def upgrade() -> None:
    _create(
        "metric_points",
        sa.Column("day", sa.String(10), nullable=False),
        _name("name"),
        _text("labels"),
        _count("n"),
        *(sa.Column(n, sa.Float()) for n in ("total", "total_squares", "value", "low", "high")),
        _time("measured_at"),
        key=("day", "name", "labels"),
    )
    op.create_index("ix_metric_points_name", "metric_points", [*SCOPE, "name", "day"])
    _create(
        "alert_rules",
        _name("rule"),
        _text("record"),
        _time("changed_at"),
        _name("changed_by"),
        key=("rule",),
    )
    _create(
        "alerts",
        _count("alert_id"),
        _name("rule"),
        _name("subject"),
        _name("state"),
        _time("opened_at"),
        _time("ended_at", nullable=True),
        _text("record"),
        sa.CheckConstraint(
            "state IN ('pending', 'open', 'acknowledged', 'resolved')",
            name=op.f("ck_alerts_state"),
        ),
        key=("alert_id",),
    )
    not_ended = sa.text("ended_at IS NULL")
    op.create_index(
        "ux_alerts_not_ended",
        "alerts",
        [*SCOPE, "rule", "subject"],
        unique=True,
        sqlite_where=not_ended,
        postgresql_where=not_ended,
    )
    _create(
        "alert_silences",
        _count("silence_id"),
        _time("ends_at"),
        _text("record"),
        key=("silence_id",),
    )
    _create(
        "alert_messages",
        _name("message_id"),
        _count("alert_id", nullable=True),
        _name("target"),
        _name("kind"),
        _text("payload"),
        _name("state"),
        sa.Column("n_attempts", sa.Integer(), nullable=False),
        _time("created_at"),
        _time("next_attempt_at"),
        _time("delivered_at", nullable=True),
        sa.Column("last_error", sa.Text(), nullable=True),
        sa.CheckConstraint(
            "state IN ('pending', 'delivered', 'dead')", name=op.f("ck_alert_messages_state")
        ),
        key=("message_id",),
    )
    op.create_index("ix_alert_messages_due", "alert_messages", [*SCOPE, "state", "next_attempt_at"])
    op.create_index("ix_alert_messages_alert", "alert_messages", [*SCOPE, "alert_id"])


def _create(name: str, *parts: sa.Column[Any] | sa.CheckConstraint, key: tuple[str, ...]) -> None:
    op.create_table(
        name,
        *(_name(column) for column in SCOPE),
        *parts,
        sa.PrimaryKeyConstraint(*SCOPE, *key, name=op.f(f"pk_{name}")),
    )


def _name(name: str) -> sa.Column[str]:
    return sa.Column(name, sa.String(), nullable=False)


def _text(name: str) -> sa.Column[str]:
    return sa.Column(name, sa.Text(), nullable=False)


def _count(name: str, *, nullable: bool = False) -> sa.Column[int]:
    return sa.Column(name, sa.BigInteger(), nullable=nullable, autoincrement=False)


def _time(name: str, *, nullable: bool = False) -> sa.Column[datetime]:
    return sa.Column(name, sa.DateTime(timezone=True), nullable=nullable)

"""Version 0012: a table of confirmed taste changes, filled from earlier retraining decisions."""

import json
from collections import Counter
from collections.abc import Iterator
from typing import Any

import sqlalchemy as sa
from alembic import op

revision = "0012"
down_revision = "0011"

SCOPE = ("organization_id", "project_id")
TABLE = "taste_changes"


def upgrade() -> None:
    made = op.create_table(
        TABLE,
        *(sa.Column(name, sa.String(), nullable=False) for name in SCOPE),
        sa.Column("change_id", sa.BigInteger(), nullable=False, autoincrement=False),
        sa.Column("change_seq", sa.BigInteger(), nullable=False, autoincrement=False),
        sa.Column("category", sa.String(), nullable=True),
        sa.Column("cause", sa.Text(), nullable=False),
        sa.Column("decision_id", sa.BigInteger(), nullable=True, autoincrement=False),
        sa.Column("actor", sa.String(), nullable=False),
        sa.Column("recorded_at", sa.DateTime(timezone=True), nullable=False),
        sa.Column("retracted_at", sa.DateTime(timezone=True), nullable=True),
        sa.Column("retracted_by", sa.String(), nullable=True),
        sa.Column("retraction_reason", sa.Text(), nullable=True),
        sa.ForeignKeyConstraint(
            [*SCOPE, "decision_id"],
            [f"decisions.{name}" for name in (*SCOPE, "decision_id")],
            name=op.f("fk_taste_changes_decision_id_decisions"),
        ),
        sa.PrimaryKeyConstraint(*SCOPE, "change_id", name=op.f("pk_taste_changes")),
    )
    if rows := list(_build_rows_of_decisions()):
        op.bulk_insert(made, rows)


def _build_rows_of_decisions() -> Iterator[dict[str, Any]]:
    """A row for each fired decision that dated a change."""
    bind = op.get_bind()
    n_changes = Counter[tuple[str, str]]()
    decisions = sa.table(
        "decisions",
        *(sa.column(name) for name in (*SCOPE, "decision_id", "action", "record")),
        sa.column("decided_at", sa.DateTime(timezone=True)),
    )
    for row in bind.execute(
        sa.select(decisions).where(decisions.c.action == "fire").order_by(decisions.c.decision_id)
    ):
        record, project = json.loads(row.record), (row.organization_id, row.project_id)
        if record.get("change_seq") is None:
            continue
        n_changes[project] += 1
        yield {
            **dict(zip(SCOPE, project, strict=True)),
            "change_id": n_changes[project],
            "change_seq": record["change_seq"],
            "category": None,
            "cause": "; ".join(record["reasons"]),
            "decision_id": row.decision_id,
            "actor": "pipeline",
            "recorded_at": row.decided_at,
            "retracted_at": None,
            "retracted_by": None,
            "retraction_reason": None,
        }

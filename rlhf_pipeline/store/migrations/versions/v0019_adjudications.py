"""Version 0019: experts' decisions on disputed comparisons."""

import sqlalchemy as sa
from alembic import op

revision = "0019"
down_revision = "0018"

SCOPE = ("organization_id", "project_id")


def upgrade() -> None:
    op.create_table(
        "adjudications",
        *(sa.Column(name, sa.String(), nullable=False) for name in SCOPE),
        sa.Column("adjudication_id", sa.BigInteger(), nullable=False, autoincrement=False),
        sa.Column("comparison_id", sa.String(), nullable=False),
        sa.Column("choice", sa.String(), nullable=True),
        sa.Column("reason", sa.Text(), nullable=False),
        sa.Column("at_seq", sa.BigInteger(), nullable=False, autoincrement=False),
        sa.Column("decided_by", sa.String(), nullable=False),
        sa.Column("decided_at", sa.DateTime(timezone=True), nullable=False),
        sa.ForeignKeyConstraint(
            [*SCOPE, "comparison_id"],
            [f"comparisons.{name}" for name in (*SCOPE, "comparison_id")],
            name=op.f("fk_adjudications_comparison_id_comparisons"),
        ),
        sa.PrimaryKeyConstraint(*SCOPE, "adjudication_id", name=op.f("pk_adjudications")),
    )
    op.create_index(
        "ix_adjudications_comparison",
        "adjudications",
        [*SCOPE, "comparison_id", "adjudication_id"],
    )

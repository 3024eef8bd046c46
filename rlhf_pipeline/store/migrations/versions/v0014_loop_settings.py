"""Version 0014: versions of the loop settings and of the evaluation set; replayed drift events."""

import sqlalchemy as sa
from alembic import op

revision = "0014"
down_revision = "0013"

SCOPE = ("organization_id", "project_id")


def upgrade() -> None:
    op.create_table(
        "evaluation_sets",
        *(sa.Column(name, sa.String(), nullable=False) for name in SCOPE),
        sa.Column("version", sa.Integer(), nullable=False, autoincrement=False),
        sa.Column("origin", sa.Text(), nullable=False),
        sa.Column("prompts_hash", sa.String(), nullable=False),
        sa.Column("n_prompts", sa.BigInteger(), nullable=False, autoincrement=False),
        sa.Column("prompts", sa.Text(), nullable=False),
        sa.Column("created_at", sa.DateTime(timezone=True), nullable=False),
        sa.PrimaryKeyConstraint(*SCOPE, "version", name=op.f("pk_evaluation_sets")),
    )
    op.create_table(
        "loop_settings",
        *(sa.Column(name, sa.String(), nullable=False) for name in SCOPE),
        sa.Column("version", sa.Integer(), nullable=False, autoincrement=False),
        sa.Column("record", sa.Text(), nullable=False),
        sa.Column("changes", sa.Text(), nullable=False),
        sa.Column("created_at", sa.DateTime(timezone=True), nullable=False),
        sa.Column("created_by", sa.String(), nullable=False),
        sa.PrimaryKeyConstraint(*SCOPE, "version", name=op.f("pk_loop_settings")),
    )
    op.add_column("drift_events", sa.Column("is_replayed", sa.Boolean(), nullable=True))

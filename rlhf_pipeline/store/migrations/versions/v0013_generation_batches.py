"""Version 0013: each batch of completions has a row, written before the batch is submitted."""

import sqlalchemy as sa
from alembic import op

revision = "0013"
down_revision = "0012"

SCOPE = ("organization_id", "project_id")
TABLE = "generation_batches"


def upgrade() -> None:
    op.create_table(
        TABLE,
        *(sa.Column(name, sa.String(), nullable=False) for name in SCOPE),
        sa.Column("submission_id", sa.String(), nullable=False),
        sa.Column("run_id", sa.String(), nullable=False),
        sa.Column("provider", sa.String(), nullable=False),
        sa.Column("model", sa.String(), nullable=False),
        sa.Column("n_items", sa.BigInteger(), nullable=False, autoincrement=False),
        sa.Column("prepared_at", sa.DateTime(timezone=True), nullable=False),
        sa.Column("submitted_at", sa.DateTime(timezone=True), nullable=True),
        sa.Column("batch_id", sa.String(), nullable=True),
        sa.Column("is_crowded", sa.Boolean(), nullable=False),
        sa.Column("owner", sa.String(), nullable=True),
        sa.Column("leased_until", sa.DateTime(timezone=True), nullable=True),
        sa.ForeignKeyConstraint(
            [*SCOPE, "run_id"],
            [f"generation_runs.{name}" for name in (*SCOPE, "run_id")],
            name=op.f("fk_generation_batches_run_id_generation_runs"),
        ),
        sa.PrimaryKeyConstraint(*SCOPE, "submission_id", name=op.f("pk_generation_batches")),
    )
    op.create_index("ix_generation_batches_run", TABLE, [*SCOPE, "run_id"])

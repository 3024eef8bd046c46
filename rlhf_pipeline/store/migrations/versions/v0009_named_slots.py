"""Version 0009: judgements that are asked of one person by name."""

import sqlalchemy as sa
from alembic import op

from rlhf_pipeline.store.migrations import preservation
from rlhf_pipeline.store.migrations.versions import v0008_generation

revision = "0009"
down_revision = "0008"

SCOPE = ("organization_id", "project_id")
KEY = ("comparison_id", "slot_no")


def upgrade() -> None:
    op.add_column(
        "slots",
        sa.Column(
            "annotator_id",
            sa.String(),
            nullable=True,
            comment="who alone is asked; missing = anybody",
        ),
    )
    named = sa.text("annotator_id IS NOT NULL AND state <> 'done'")
    columns = [*SCOPE, "annotator_id", "priority", "comparison_id", "slot_no"]
    op.create_index(
        "ix_slots_named", "slots", columns, unique=False, sqlite_where=named, postgresql_where=named
    )
    v0008_generation.planner_statistics()
    preservation.restore_columns(revision, "slots", KEY, ("annotator_id",))


def downgrade() -> None:
    """An older program deals to anybody what one person was asked for; who that was is put aside
    until the way up, see `preservation`.
    """
    preservation.preserve_columns(revision, "slots", KEY, ("annotator_id",))
    op.drop_index("ix_slots_named", "slots")
    op.drop_column("slots", "annotator_id")
    v0008_generation.planner_statistics()

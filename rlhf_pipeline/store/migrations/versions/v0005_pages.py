"""Version 0005: comparisons in one order that an index gives whole, so that the thousandth page
costs what the first one does.
"""

from alembic import op

from rlhf_pipeline.store.migrations.versions import v0003_planner_statistics

revision = "0005"
down_revision = "0004"

ORDER = ("organization_id", "project_id", "day", "position")


def upgrade() -> None:
    # without it Postgres reads and sorts the whole table for a page that begins in its middle
    _index("comparison_id")


def downgrade() -> None:
    _index()


def _index(*more: str) -> None:
    op.drop_index("ix_comparisons_day", "comparisons")
    op.create_index("ix_comparisons_day", "comparisons", [*ORDER, *more], unique=False)
    v0003_planner_statistics.upgrade()  # SQLite forgets what it knew of an index that is dropped

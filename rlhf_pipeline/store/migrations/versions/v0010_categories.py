"""Version 0010: the comparisons of one category in the order of lists, so that a rare one is found
without reading all of them.
"""

import sqlalchemy as sa
from alembic import op

from rlhf_pipeline.store.migrations.versions import v0003_planner_statistics, v0008_generation

revision = "0010"
down_revision = "0009"

INDEX = "ix_comparisons_category"
COLUMNS = ("organization_id", "project_id", "category", "day", "position", "comparison_id")


def upgrade() -> None:
    op.create_index(INDEX, "comparisons", list(COLUMNS), unique=False)
    planner_statistics()


def downgrade() -> None:
    op.drop_index(INDEX, "comparisons")  # and with it SQLite's statistics of it


def planner_statistics() -> None:
    """Version 0008's, and that many comparisons are of one category. Later versions that change an
    index call this one.
    """
    v0008_generation.planner_statistics()
    bind = op.get_bind()
    if bind.dialect.name == "sqlite":
        n = v0003_planner_statistics.N_ROWS
        bind.execute(
            sa.text("UPDATE sqlite_stat1 SET stat = :s WHERE idx = :i"),
            {"s": f"{n} {n} {n} 100000 1000 1 1", "i": INDEX},
        )

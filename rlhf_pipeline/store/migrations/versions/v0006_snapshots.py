"""Version 0006: what a snapshot needs of a comparison stands in an index, so that no text is read
for a day's votes.

A row of comparisons is a prompt and two completions wide: of the pages read for a day of 3,000
votes on a million, most held texts.
"""

from alembic import op
from sqlalchemy import text

from rlhf_pipeline.store.migrations.versions import v0003_planner_statistics

revision = "0006"
down_revision = "0005"

INDEX = "ix_comparisons_prompt"
COLUMNS = ("organization_id", "project_id", "comparison_id", "prompt_id", "repeat_of")


def upgrade() -> None:
    op.create_index(INDEX, "comparisons", list(COLUMNS), unique=False)
    planner_statistics()


def downgrade() -> None:
    op.drop_index(INDEX, "comparisons")  # and with it SQLite's statistics of it


def planner_statistics() -> None:
    """Version 0003's, and that one comparison has one prompt. Later versions that change an index
    call this one, not that one.

    Version 0003 takes any comparison_id for one of votes, five of each: then SQLite reads the rows
    instead of this index.
    """
    v0003_planner_statistics.upgrade()
    bind = op.get_bind()
    if bind.dialect.name == "sqlite":
        n = v0003_planner_statistics.N_ROWS
        bind.execute(
            text("UPDATE sqlite_stat1 SET stat = :s WHERE idx = :i"),
            {"s": f"{n} {n} {n} 1 1 1", "i": INDEX},
        )

"""Version 0020: votes by annotator, so that charts can withhold figures of few people."""

import sqlalchemy as sa
from alembic import op

revision = "0020"
down_revision = "0019"

SCOPE = ("organization_id", "project_id")
KINDS = ("category", "source", "model_version")


def upgrade() -> None:
    op.create_table(
        "annotator_sums",
        *(sa.Column(name, sa.String(), nullable=False) for name in (*SCOPE, "annotator_id")),
        sa.Column("day", sa.String(10), nullable=False),
        *(sa.Column(name, sa.String(), nullable=False) for name in KINDS),
        sa.Column("n", sa.BigInteger(), nullable=False, autoincrement=False),
        sa.PrimaryKeyConstraint(
            *SCOPE, "annotator_id", "day", *KINDS, name=op.f("pk_annotator_sums")
        ),
        sqlite_with_rowid=False,
    )

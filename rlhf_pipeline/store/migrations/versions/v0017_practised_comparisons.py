"""Version 0017: comparisons with a known answer on which annotators practised."""

import sqlalchemy as sa
from alembic import op

revision = "0017"
down_revision = "0016"

SCOPE = ("organization_id", "project_id")
KEY = ("annotator_id", "comparison_id")


def upgrade() -> None:
    op.create_table(
        "practised_comparisons",
        *(sa.Column(name, sa.String(), nullable=False) for name in (*SCOPE, *KEY)),
        sa.Column("practised_at", sa.DateTime(timezone=True), nullable=False),
        sa.PrimaryKeyConstraint(*SCOPE, *KEY, name=op.f("pk_practised_comparisons")),
    )

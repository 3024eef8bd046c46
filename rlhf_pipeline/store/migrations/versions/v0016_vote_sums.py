"""Version 0016: sums of votes, and groups of annotators."""

import sqlalchemy as sa
from alembic import op

revision = "0016"
down_revision = "0015"

SCOPE = ("organization_id", "project_id")
CELL = ("annotator_group", "category", "source", "model_version")
SUMS = ("n_groups", "n", "total", "n_squares", "products", "total_squares")


def upgrade() -> None:
    op.create_table(
        "vote_sums",
        *(sa.Column(name, sa.String(), nullable=False) for name in (*SCOPE, "measure", *CELL)),
        sa.Column("day", sa.String(10), nullable=False),
        *(sa.Column(name, sa.Float(), nullable=False) for name in SUMS),
        sa.PrimaryKeyConstraint(*SCOPE, "measure", *CELL, "day", name=op.f("pk_vote_sums")),
        sqlite_with_rowid=False,
    )
    op.create_table(
        "vote_sums_head",
        *(sa.Column(name, sa.String(), nullable=False) for name in SCOPE),
        sa.Column("seq", sa.BigInteger(), nullable=False, autoincrement=False),
        sa.Column("version", sa.Integer(), nullable=False),
        sa.Column("revision", sa.BigInteger(), nullable=False, autoincrement=False),
        sa.PrimaryKeyConstraint(*SCOPE, name=op.f("pk_vote_sums_head")),
    )
    op.create_table(
        "annotator_groups",
        *(sa.Column(name, sa.String(), nullable=False) for name in (*SCOPE, "annotator_id")),
        sa.Column("name", sa.String(), nullable=False),
        sa.Column("is_tag", sa.Boolean(), nullable=False),
        sa.Column("first_seq", sa.BigInteger(), nullable=True, autoincrement=False),
        sa.PrimaryKeyConstraint(*SCOPE, "annotator_id", name=op.f("pk_annotator_groups")),
    )

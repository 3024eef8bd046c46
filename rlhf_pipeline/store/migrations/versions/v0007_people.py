"""Version 0007: people. Who they are and what they may do, the cards they are dealt, what they say
beside a vote and without one.
"""

from typing import Any

import sqlalchemy as sa
from alembic import op

from rlhf_pipeline.store.migrations import preservation
from rlhf_pipeline.store.migrations.versions import (
    v0002_append_only,
    v0003_planner_statistics,
    v0006_snapshots,
)

revision = "0007"
down_revision = "0006"

SCOPE = ("organization_id", "project_id")
APPEND_ONLY = ("guidelines", "annotation_rules", "feedback")
TABLES = (
    "requests",
    "feedback",
    "annotation_rules",
    "guidelines",
    "failed_logins",
    "tokens",
    "role_grants",
    "users",
    "slots",
    "assignments",
)
NEW_IN_VOTES = ("assignment_id", "is_swapped", "guideline_version", "details")


def upgrade() -> None:
    op.add_column("comparisons", _id("written_by", nullable=True))
    op.add_column("votes", _id("assignment_id", nullable=True))
    op.add_column(
        "votes",
        sa.Column(
            "is_swapped", sa.Boolean(), nullable=True, comment="completion b was shown on the left"
        ),
    )
    op.add_column("votes", sa.Column("guideline_version", sa.Integer(), nullable=True))
    op.add_column("votes", sa.Column("details", sa.Text(), nullable=True))
    op.create_index("ix_votes_annotator", "votes", [*SCOPE, "annotator_id", "seq"], unique=False)
    is_known = sa.text("gold IS NOT NULL")
    columns = [*SCOPE, "day", "position", "comparison_id"]
    op.create_index(
        "ix_comparisons_gold",
        "comparisons",
        columns,
        unique=False,
        sqlite_where=is_known,
        postgresql_where=is_known,
    )
    _create_work()
    _create_people()
    _create_words()
    for table in APPEND_ONLY:
        _refuse_change(table)
    _restore_rows()
    planner_statistics()


def downgrade() -> None:
    """People, their work and their words are put aside until the way up: the older tables cannot
    hold them, see `preservation`.
    """
    for table in TABLES:
        preservation.preserve_rows(revision, table)
    preservation.preserve_columns(revision, "votes", ("seq",), NEW_IN_VOTES)
    preservation.preserve_columns(revision, "comparisons", ("comparison_id",), ("written_by",))
    for table in TABLES:
        op.drop_table(table)
    op.drop_index("ix_comparisons_gold", "comparisons")
    op.drop_index("ix_votes_annotator", "votes")
    is_sqlite = op.get_bind().dialect.name == "sqlite"
    if is_sqlite:
        v0002_append_only.drop_triggers("votes")
    for name in reversed(NEW_IN_VOTES):
        op.drop_column("votes", name)
    if is_sqlite:
        v0002_append_only.create_triggers("votes")
    op.drop_column("comparisons", "written_by")
    v0006_snapshots.planner_statistics()


def _restore_rows() -> None:
    for table in reversed(TABLES):  # a grant after the user it is of
        preservation.restore_rows(revision, table)
    preservation.restore_columns(revision, "votes", ("seq",), NEW_IN_VOTES, append_only=True)
    preservation.restore_columns(revision, "comparisons", ("comparison_id",), ("written_by",))


def planner_statistics() -> None:
    """Version 0006's, and that one annotator has many votes and cards. Later versions that change
    an index call this one.

    Else SQLite takes an annotator for as good as one vote, and reads all of theirs for each vote of
    a snapshot.
    """
    v0006_snapshots.planner_statistics()
    bind = op.get_bind()
    if bind.dialect.name == "sqlite":
        n = v0003_planner_statistics.N_ROWS
        for index, spread in (
            ("ix_votes_annotator", "3000 1"),
            ("ix_assignments_annotator", "3000 1"),
            ("ix_assignments_state", "3000 50 1"),
        ):
            bind.execute(
                sa.text("UPDATE sqlite_stat1 SET stat = :s WHERE idx = :i"),
                {"s": f"{n} {n} {n} {spread}", "i": index},
            )


def _create_work() -> None:
    _create(
        "assignments",
        _id("assignment_id"),
        _id("comparison_id"),
        _id("annotator_id"),
        sa.Column("pass_no", sa.Integer(), nullable=False),
        _id("kind"),
        sa.Column("is_swapped", sa.Boolean(), nullable=False),
        sa.Column("n", sa.BigInteger(), autoincrement=False, nullable=False),
        _id("state"),
        sa.Column("slot_no", sa.Integer(), nullable=True),
        _time("leased_at"),
        _time("leased_until"),
        _time("settled_at", nullable=True),
        sa.CheckConstraint(
            "kind IN ('normal', 'repeat', 'gold')", name=op.f("ck_assignments_kind")
        ),
        sa.CheckConstraint(
            "state IN ('leased', 'voted', 'skipped', 'released')", name=op.f("ck_assignments_state")
        ),
        sa.UniqueConstraint(
            *SCOPE, "comparison_id", "annotator_id", "pass_no", name="uq_assignments_turn"
        ),
        _refers("assignments", "comparison_id", "comparisons"),
        key=("assignment_id",),
    )
    op.create_index(
        "ix_assignments_annotator", "assignments", [*SCOPE, "annotator_id", "n"], unique=False
    )
    op.create_index(
        "ix_assignments_state",
        "assignments",
        [*SCOPE, "annotator_id", "state", "settled_at"],
        unique=False,
    )
    _create(
        "slots",
        _id("comparison_id"),
        sa.Column("slot_no", sa.Integer(), autoincrement=False, nullable=False),
        sa.Column("priority", sa.BigInteger(), autoincrement=False, nullable=False),
        _id("state"),
        _id("assignment_id", nullable=True),
        _time("leased_until", nullable=True),
        sa.CheckConstraint("state IN ('open', 'leased', 'done')", name=op.f("ck_slots_state")),
        _refers("slots", "comparison_id", "comparisons"),
        key=("comparison_id", "slot_no"),
    )
    to_do = sa.text("state <> 'done'")
    columns = [*SCOPE, "priority", "comparison_id", "slot_no"]
    op.create_index(
        "ix_slots_to_do", "slots", columns, unique=False, sqlite_where=to_do, postgresql_where=to_do
    )


def _create_people() -> None:
    _create(
        "users",
        _id("user_id"),
        _id("email"),
        sa.Column("name", sa.Text(), nullable=False),
        _id("kind"),
        sa.Column("password_hash", sa.Text(), nullable=True),
        _time("created_at"),
        _time("disabled_at", nullable=True),
        sa.CheckConstraint("kind IN ('person', 'service')", name=op.f("ck_users_kind")),
        sa.UniqueConstraint(*SCOPE, "email", name="uq_users_email"),
        key=("user_id",),
    )
    _create(
        "role_grants",
        _id("user_id"),
        _id("role"),
        _time("granted_at"),
        _id("granted_by"),
        _refers("role_grants", "user_id", "users"),
        key=("user_id", "role"),
    )
    _create(
        "tokens",
        sa.Column("token_hash", sa.String(length=64), nullable=False),
        _id("user_id"),
        _id("kind"),
        sa.Column("name", sa.Text(), nullable=True),
        sa.Column("scopes", sa.Text(), nullable=True),
        _time("created_at"),
        _time("expires_at"),
        _time("last_used_at", nullable=True),
        _time("revoked_at", nullable=True),
        sa.CheckConstraint("kind IN ('api', 'session', 'login')", name=op.f("ck_tokens_kind")),
        _refers("tokens", "user_id", "users"),
        key=("token_hash",),
    )
    op.create_index("ix_tokens_user", "tokens", [*SCOPE, "user_id"], unique=False)
    _create(
        "failed_logins",
        _id("who"),
        sa.Column("n_failed", sa.Integer(), nullable=False),
        _time("last_failed_at"),
        key=("who",),
    )


def _create_words() -> None:
    _create(
        "guidelines",
        sa.Column("version", sa.Integer(), autoincrement=False, nullable=False),
        sa.Column("text", sa.Text(), nullable=False),
        _time("created_at"),
        _id("created_by"),
        key=("version",),
    )
    _create(
        "annotation_rules",
        sa.Column("version", sa.Integer(), autoincrement=False, nullable=False),
        sa.Column("record", sa.Text(), nullable=False),
        _time("created_at"),
        _id("created_by"),
        key=("version",),
    )
    _create(
        "feedback",
        sa.Column("feedback_id", sa.BigInteger(), autoincrement=False, nullable=False),
        _id("kind"),
        _id("session_id", nullable=True),
        _id("created_by"),
        _time("created_at"),
        sa.Column("record", sa.Text(), nullable=False),
        _id("comparison_id", nullable=True),
        _id("vote_id", nullable=True),
        sa.CheckConstraint(
            "kind IN ('thumbs', 'rating', 'correction', 'detailed')", name=op.f("ck_feedback_kind")
        ),
        key=("feedback_id",),
    )
    op.create_index(
        "ix_feedback_session", "feedback", [*SCOPE, "session_id", "feedback_id"], unique=False
    )
    _create(
        "requests",
        _id("principal"),
        _id("idempotency_key"),
        sa.Column("request_hash", sa.String(length=64), nullable=False),
        sa.Column(
            "status",
            sa.Integer(),
            nullable=True,
            comment="of the answer; missing while it is being made",
        ),
        sa.Column("answer", sa.Text(), nullable=True),
        _time("started_at"),
        _time("expires_at"),
        key=("principal", "idempotency_key"),
    )
    op.create_index("ix_requests_expires_at", "requests", [*SCOPE, "expires_at"], unique=False)


def _refuse_change(table: str) -> None:
    if op.get_bind().dialect.name == "sqlite":
        v0002_append_only.create_triggers(table)
        return
    op.execute(
        f"CREATE TRIGGER {table}_refuse_change BEFORE UPDATE OR DELETE OR TRUNCATE ON {table} "
        "FOR EACH STATEMENT EXECUTE FUNCTION refuse_change()"
    )


def _id(name: str, *, nullable: bool = False) -> sa.Column[Any]:
    return sa.Column(name, sa.String(), nullable=nullable)


def _time(name: str, *, nullable: bool = False) -> sa.Column[Any]:
    return sa.Column(name, sa.DateTime(timezone=True), nullable=nullable)


def _refers(table: str, column: str, other: str) -> sa.ForeignKeyConstraint:
    key = (*SCOPE, column)
    return sa.ForeignKeyConstraint(
        key, [f"{other}.{c}" for c in key], name=op.f(f"fk_{table}_{column}_{other}")
    )


def _create(name: str, *parts: sa.schema.SchemaItem, key: tuple[str, ...]) -> None:
    scope = [sa.Column(column, sa.String(), nullable=False) for column in SCOPE]
    op.create_table(
        name, *scope, *parts, sa.PrimaryKeyConstraint(*SCOPE, *key, name=op.f(f"pk_{name}"))
    )

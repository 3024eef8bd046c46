"""Version 0008: the work ledger. Every completion asked for, every call made for it, and what the
calls cost.
"""

from typing import Any

import sqlalchemy as sa
from alembic import op

from rlhf_pipeline.store.migrations import preservation
from rlhf_pipeline.store.migrations.versions import v0003_planner_statistics, v0007_people

revision = "0008"
down_revision = "0007"

SCOPE = ("organization_id", "project_id")
TABLES = ("generation_spending", "generation_attempts", "generation_items", "generation_runs")


def upgrade() -> None:
    op.add_column(
        "completion_cache", sa.Column("last_hit_at", sa.DateTime(timezone=True), nullable=True)
    )
    _create(
        "generation_runs",
        _id("run_id"),
        _id("asset"),
        _count("n_items"),
        sa.Column("record", sa.Text(), nullable=False),
        _id("origin", nullable=True),
        _time("started_at"),
        _time("ended_at", nullable=True),
        _time("parked_until", nullable=True),
        sa.Column("parked_why", sa.Text(), nullable=True),
        key=("run_id",),
    )
    _create(
        "generation_items",
        _id("run_id"),
        _count("item_no"),
        _count("position"),
        _id("prompt_id"),
        _id("provider"),
        _id("model"),
        sa.Column("sample_index", sa.Integer(), nullable=False),
        sa.Column("params", sa.Text(), nullable=False),
        _id("cache_key"),
        _id("state"),
        _id("owner", nullable=True),
        _time("leased_until", nullable=True),
        _time("not_before", nullable=True),
        _count("reserved"),
        sa.Column("is_metered", sa.Boolean(), nullable=False),
        sa.Column(
            "is_cached", sa.Boolean(), nullable=False, comment="succeeded without a call of its own"
        ),
        sa.Column("n_attempts", sa.Integer(), nullable=False),
        sa.Column(
            "n_faults", sa.Integer(), nullable=False, comment="attempts that count against the item"
        ),
        _id("kind", nullable=True),
        sa.Column("error", sa.Text(), nullable=True),
        _time("settled_at", nullable=True),
        sa.CheckConstraint(
            "state IN ('open', 'leased', 'succeeded', 'failed')",
            name=op.f("ck_generation_items_state"),
        ),
        _refers("generation_items", "run_id", "generation_runs"),
        key=("run_id", "item_no"),
    )
    is_open, is_leased = sa.text("state = 'open'"), sa.text("state = 'leased'")
    columns = [*SCOPE, "run_id", "provider", "model", "position"]
    op.create_index(
        "ix_generation_items_to_do",
        "generation_items",
        columns,
        unique=False,
        sqlite_where=is_open,
        postgresql_where=is_open,
    )
    columns = [*SCOPE, "cache_key"]
    op.create_index(
        "ix_generation_items_leased",
        "generation_items",
        columns,
        unique=False,
        sqlite_where=is_leased,
        postgresql_where=is_leased,
    )
    _create(
        "generation_attempts",
        _id("run_id"),
        _count("item_no"),
        sa.Column("attempt_no", sa.Integer(), autoincrement=False, nullable=False),
        _id("provider"),
        _id("model"),
        _time("started_at"),
        sa.Column("latency_ms", sa.Float(), nullable=False),
        _id("outcome"),
        _id("kind"),
        sa.Column("status", sa.Integer(), nullable=True),
        _count("n_prompt_tokens"),
        _count("n_tokens"),
        _count("cost"),
        _id("billing"),
        sa.Column("wait_s", sa.Float(), nullable=True, comment="that the provider asked for"),
        sa.Column("error", sa.Text(), nullable=True),
        sa.Column("partial", sa.Text(), nullable=True, comment="text of a stream that broke"),
        sa.CheckConstraint(
            "outcome IN ('succeeded', 'retryable', 'terminal', 'lost')",
            name=op.f("ck_generation_attempts_outcome"),
        ),
        sa.CheckConstraint(
            "billing IN ('metered', 'none', 'unknown')", name=op.f("ck_generation_attempts_billing")
        ),
        _refers("generation_attempts", "run_id", "generation_runs"),
        key=("run_id", "item_no", "attempt_no"),
    )
    _create(
        "generation_spending",
        _id("run_id"),
        sa.Column("day", sa.String(length=10), nullable=False),
        _id("provider"),
        _id("model"),
        _id("asset"),
        _count("n_calls"),
        _count("n_unknown"),
        _count("n_prompt_tokens"),
        _count("n_tokens"),
        _count("cost"),
        _count("cost_unknown"),
        _refers("generation_spending", "run_id", "generation_runs"),
        key=("run_id", "day", "provider", "model"),
    )
    op.create_index(
        "ix_generation_spending_day", "generation_spending", [*SCOPE, "day"], unique=False
    )
    op.create_index(
        "ix_generation_spending_provider", "generation_spending", [*SCOPE, "provider"], unique=False
    )
    for table in reversed(TABLES):  # a run before what refers to it
        preservation.restore_rows(revision, table)
    preservation.restore_columns(revision, "completion_cache", ("cache_key",), ("last_hit_at",))
    planner_statistics()


def downgrade() -> None:
    """The ledger is put aside until the way up, see `preservation`: what was asked for, what it
    cost, and when a completion was last taken.
    """
    for table in TABLES:
        preservation.preserve_rows(revision, table)
    preservation.preserve_columns(revision, "completion_cache", ("cache_key",), ("last_hit_at",))
    for table in TABLES:
        op.drop_table(table)
    op.drop_column("completion_cache", "last_hit_at")
    v0007_people.planner_statistics()


def planner_statistics() -> None:
    """Version 0007's, and that a run has many items and calls. Later versions that change an index
    call this one.
    """
    v0007_people.planner_statistics()
    bind = op.get_bind()
    if bind.dialect.name == "sqlite":
        n = v0003_planner_statistics.N_ROWS
        for index, spread in (
            ("ix_generation_items_to_do", "3000 3000 3000 1"),
            ("ix_generation_items_leased", "1"),
            ("sqlite_autoindex_generation_items_1", "3000 1"),
            ("sqlite_autoindex_generation_attempts_1", "3000 2 1"),
            ("sqlite_autoindex_generation_spending_1", "3 2 2 1"),
            ("ix_generation_spending_provider", "300"),
            ("ix_generation_spending_day", "30"),
        ):
            bind.execute(
                sa.text("UPDATE sqlite_stat1 SET stat = :s WHERE idx = :i"),
                {"s": f"{n} {n} {n} {spread}", "i": index},
            )


def _id(name: str, *, nullable: bool = False) -> sa.Column[Any]:
    return sa.Column(name, sa.String(), nullable=nullable)


def _count(name: str) -> sa.Column[Any]:
    return sa.Column(name, sa.BigInteger(), autoincrement=False, nullable=False)


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

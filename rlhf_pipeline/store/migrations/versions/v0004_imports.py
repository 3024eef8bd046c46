"""Version 0004: votes and comparisons from elsewhere. Votes without a time, where a comparison came
from, what is left out and why.
"""

from typing import Any

import sqlalchemy as sa
from alembic import op

from rlhf_pipeline.errors import StoreError
from rlhf_pipeline.records import content_id
from rlhf_pipeline.store.migrations import preservation
from rlhf_pipeline.store.migrations.versions import v0002_append_only, v0003_planner_statistics

revision = "0004"
down_revision = "0003"

SCOPE = ("organization_id", "project_id")
NEW_IN_COMPARISONS = (
    "source",
    "source_pair_id",
    "split_group",
    "split",
    "gold",
    "flag",
    "pair_key",
)
# pair keys are made again on the way up
NAMED = tuple(name for name in NEW_IN_COMPARISONS if name != "pair_key")
TABLES = ("imports", "replays")
# tables, keys and columns
LATER = (
    ("predictions", ("comparison_id", "reward_model"), "is_replayed"),
    ("votes", ("seq",), "task_id"),
)
ROWS = 5_000  # read at a time


def upgrade() -> None:
    for name in NEW_IN_COMPARISONS:
        op.add_column("comparisons", sa.Column(name, sa.String(), nullable=True))
    _fill_pair_keys()
    op.create_index("ix_comparisons_pair_key", "comparisons", [*SCOPE, "pair_key"], unique=False)
    given = sa.text("source_pair_id IS NOT NULL")
    op.create_index(
        "ix_comparisons_source_pair_id",
        "comparisons",
        [*SCOPE, "source_pair_id"],
        unique=True,
        sqlite_where=given,
        postgresql_where=given,
    )
    replayed = "written after the votes, by a model that had seen none of them"
    op.add_column(
        "predictions", sa.Column("is_replayed", sa.Boolean(), nullable=True, comment=replayed)
    )
    _change_votes(before=_votes_table(dated=True), nullable=True)
    _create(
        "imports",
        sa.Column("import_id", sa.BigInteger(), autoincrement=False, nullable=False),
        sa.Column("kind", sa.String(), nullable=False),
        sa.Column("file", sa.Text(), nullable=False),
        sa.Column("state", sa.String(), nullable=False),
        sa.Column("started_at", sa.DateTime(timezone=True), nullable=False),
        sa.Column("finished_at", sa.DateTime(timezone=True), nullable=True),
        sa.Column("record", sa.Text(), nullable=False),
        sa.CheckConstraint(
            "state IN ('started', 'finished', 'failed')", name=op.f("ck_imports_state")
        ),
        key=("import_id",),
    )
    _create(
        "replays",
        sa.Column("day", sa.String(length=10), nullable=False),
        sa.Column("state", sa.String(), nullable=False),
        sa.Column("asked_at", sa.DateTime(timezone=True), nullable=False),
        sa.Column("done_at", sa.DateTime(timezone=True), nullable=True),
        sa.Column("leased_for", sa.String(), nullable=True),
        sa.Column("leased_until", sa.DateTime(timezone=True), nullable=True),
        sa.CheckConstraint("state IN ('pending', 'done')", name=op.f("ck_replays_state")),
        key=("day",),
    )
    for table in TABLES:
        preservation.restore_rows(revision, table)
    preservation.restore_columns(revision, "comparisons", ("comparison_id",), NAMED)
    for table, key, column in LATER:
        preservation.restore_columns(revision, table, key, (column,), append_only=True)
    # the rebuilt table lost its statistics, the new indexes have none yet
    v0003_planner_statistics.upgrade()


def downgrade() -> None:
    """What the older tables cannot hold is put aside until the way up, see `preservation`.

    Refused while there are votes without a time. The older table wants one, and a made-up one would
    be read as true: it would put votes that are in no order before the drift detectors, which leave
    them out.
    """
    bind = op.get_bind()
    undated = bind.execute(
        sa.text("SELECT count(*) FROM votes WHERE voted_at IS NULL")
    ).scalar_one()
    if undated:
        raise StoreError(
            f"Version 0003 cannot hold what was imported since: {undated:,} votes without a time. "
            "Nothing was changed. Stay at this version; to go on with an older package, export "
            "with `rlhf export votes`, `comparisons` and `tuples`."
        )
    for table in TABLES:
        preservation.preserve_rows(revision, table)
    preservation.preserve_columns(revision, "comparisons", ("comparison_id",), NAMED)
    for table, key, column in LATER:
        preservation.preserve_columns(revision, table, key, (column,))
    op.drop_table("replays")
    op.drop_table("imports")
    _change_votes(before=_votes_table(dated=False), nullable=False)
    if bind.dialect.name == "sqlite":
        v0002_append_only.drop_triggers("predictions")
    op.drop_column("predictions", "is_replayed")
    if bind.dialect.name == "sqlite":
        v0002_append_only.create_triggers("predictions")
    op.drop_index("ix_comparisons_source_pair_id", "comparisons")
    op.drop_index("ix_comparisons_pair_key", "comparisons")
    for name in reversed(NEW_IN_COMPARISONS):
        op.drop_column("comparisons", name)
    v0003_planner_statistics.upgrade()


def _fill_pair_keys() -> None:
    """What `store.comparisons` gives every new row: the same for the same two texts under the same
    prompt, in either order.
    """
    bind = op.get_bind()
    key = ("organization_id", "project_id", "comparison_id")
    rows = sa.table(
        "comparisons",
        *(sa.column(c) for c in (*key, "prompt", "completion_a", "completion_b", "pair_key")),
    )
    after: tuple[Any, ...] | None = None
    while True:
        wanted = sa.select(
            *(rows.c[c] for c in (*key, "prompt", "completion_a", "completion_b"))
        ).order_by(*(rows.c[c] for c in key))
        if after is not None:
            wanted = wanted.where(sa.tuple_(*(rows.c[c] for c in key)) > after)
        found = bind.execute(wanted.limit(ROWS)).all()
        if not found:
            return
        this = sa.and_(*(rows.c[c] == sa.bindparam(f"of_{c}") for c in key))
        bind.execute(
            rows.update().where(this).values(pair_key=sa.bindparam("new_key")),
            [
                {
                    "of_organization_id": r[0],
                    "of_project_id": r[1],
                    "of_comparison_id": r[2],
                    "new_key": content_id(r[3], *sorted(r[4:6])),
                }
                for r in found
            ],
        )
        after = tuple(found[-1][:3])


def _change_votes(*, before: sa.Table, nullable: bool) -> None:
    if op.get_bind().dialect.name != "sqlite":
        op.alter_column("votes", "voted_at", nullable=nullable)
        if nullable:
            op.add_column("votes", sa.Column("task_id", sa.String(), nullable=True))
        else:
            op.drop_column("votes", "task_id")
        return
    # SQLite changes a column by copying the table; its triggers go with the old one.
    with op.batch_alter_table("votes", copy_from=before) as votes:
        votes.alter_column("voted_at", nullable=nullable)
        if nullable:
            votes.add_column(sa.Column("task_id", sa.String(), nullable=True))
        else:
            votes.drop_column("task_id")
    v0002_append_only.create_triggers("votes")


def _votes_table(*, dated: bool) -> sa.Table:
    """The table as it stands before the change: `dated` with version 0003, else with this one."""
    displaced = sa.text("displaced_day IS NOT NULL")
    votes = sa.Table(
        "votes",
        sa.MetaData(),
        *(sa.Column(column, sa.String(), nullable=False) for column in SCOPE),
        sa.Column("seq", sa.BigInteger(), autoincrement=False, nullable=False),
        sa.Column("vote_id", sa.String(), nullable=False),
        sa.Column("comparison_id", sa.String(), nullable=False),
        sa.Column("annotator_id", sa.String(), nullable=False),
        sa.Column("annotator_kind", sa.String(), nullable=False),
        sa.Column("choice", sa.String(), nullable=False),
        sa.Column("strength", sa.Integer(), nullable=True),
        sa.Column("reason", sa.Text(), nullable=True),
        sa.Column("stated_confidence", sa.Float(), nullable=True),
        sa.Column("duration_s", sa.Float(), nullable=True),
        sa.Column("voted_at", sa.DateTime(timezone=True), nullable=not dated),
        sa.Column("day", sa.String(length=10), nullable=False),
        sa.Column("received_at", sa.DateTime(timezone=True), nullable=False),
        sa.Column("origin", sa.String(), nullable=False),
        sa.Column("idempotency_key", sa.String(), nullable=False),
        sa.Column("supersedes", sa.String(), nullable=True),
        sa.Column("pass_no", sa.Integer(), nullable=False),
        sa.Column("revision_no", sa.Integer(), nullable=False),
        sa.Column("displaced_day", sa.String(length=10), nullable=True),
        *([] if dated else [sa.Column("task_id", sa.String(), nullable=True)]),
        sa.CheckConstraint(
            "choice IN ('a', 'b', 'tie', 'both_bad', 'skip')", name=op.f("ck_votes_choice")
        ),
        sa.CheckConstraint(
            "strength IS NULL OR (choice IN ('a', 'b') AND strength BETWEEN 1 AND 4)",
            name=op.f("ck_votes_strength"),
        ),
        sa.PrimaryKeyConstraint(*SCOPE, "seq", name=op.f("pk_votes")),
        sa.UniqueConstraint(
            *SCOPE, "comparison_id", "annotator_id", "pass_no", "revision_no", name="uq_votes_turn"
        ),
        sa.UniqueConstraint(*SCOPE, "supersedes", name="uq_votes_supersedes"),
        sa.UniqueConstraint(*SCOPE, "vote_id", name="uq_votes_vote_id"),
        sa.ForeignKeyConstraint(
            [*SCOPE, "comparison_id"],
            [f"comparisons.{c}" for c in (*SCOPE, "comparison_id")],
            name=op.f("fk_votes_comparison_id_comparisons"),
        ),
        sa.Index("ix_votes_day", *SCOPE, "day", "seq"),
        sa.Index("ix_votes_displaced_day", *SCOPE, "displaced_day", "seq", sqlite_where=displaced),
    )
    comparisons = sa.Table(
        "comparisons",
        votes.metadata,
        *(sa.Column(c, sa.String()) for c in (*SCOPE, "comparison_id")),
    )
    assert comparisons is not None  # the foreign key finds it in the metadata
    return votes


def _create(name: str, *parts: sa.schema.SchemaItem, key: tuple[str, ...]) -> None:
    scope = [sa.Column(column, sa.String(), nullable=False) for column in SCOPE]
    op.create_table(
        name, *scope, *parts, sa.PrimaryKeyConstraint(*SCOPE, *key, name=op.f(f"pk_{name}"))
    )

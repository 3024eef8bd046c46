"""Version 0001: the tables. Knows them as they were then; a later change is a later version."""

import sqlalchemy as sa
from alembic import op

from rlhf_pipeline.store.migrations import preservation

revision = "0001"
down_revision = None

SCOPE = ("organization_id", "project_id")


def upgrade() -> None:
    _create(
        "audit",
        sa.Column("seq", sa.BigInteger(), autoincrement=False, nullable=False),
        sa.Column("at", sa.DateTime(timezone=True), nullable=False),
        sa.Column("actor", sa.String(), nullable=False),
        sa.Column("action", sa.String(), nullable=False),
        sa.Column("object_id", sa.String(), nullable=False),
        sa.Column("payload_digest", sa.String(length=64), nullable=False),
        sa.Column("prev_hash", sa.String(length=64), nullable=False),
        sa.Column("hash", sa.String(length=64), nullable=False),
        key=("seq",),
    )
    _create(
        "calibrations",
        sa.Column("reward_model", sa.String(), nullable=False),
        sa.Column("version", sa.Integer(), autoincrement=False, nullable=False),
        sa.Column("fitted_at", sa.DateTime(timezone=True), nullable=False),
        sa.Column("report", sa.Text(), nullable=False),
        sa.Column("calibrator", sa.Text(), nullable=False),
        key=(
            "reward_model",
            "version",
        ),
    )
    _create(
        "comparisons",
        sa.Column("comparison_id", sa.String(), nullable=False),
        sa.Column("day", sa.String(length=10), nullable=False),
        sa.Column("prompt_id", sa.String(), nullable=False),
        sa.Column("prompt", sa.Text(), nullable=False),
        sa.Column("completion_a_id", sa.String(), nullable=False),
        sa.Column("completion_b_id", sa.String(), nullable=False),
        sa.Column("completion_a", sa.Text(), nullable=False),
        sa.Column("completion_b", sa.Text(), nullable=False),
        sa.Column("model_version_a", sa.String(), nullable=False),
        sa.Column("model_version_b", sa.String(), nullable=False),
        sa.Column("category", sa.String(), nullable=False),
        sa.Column("repeat_of", sa.String(), nullable=True),
        sa.Column("position", sa.BigInteger(), autoincrement=False, nullable=False),
        sa.Column("seed", sa.BigInteger(), autoincrement=False, nullable=False),
        sa.Column("published_at", sa.DateTime(timezone=True), nullable=False),
        key=("comparison_id",),
    )
    op.create_index("ix_comparisons_day", "comparisons", [*SCOPE, "day", "position"], unique=False)
    _create(
        "completion_cache",
        sa.Column("cache_key", sa.String(), nullable=False),
        sa.Column("value", sa.Text(), nullable=False),
        sa.Column("stored_at", sa.DateTime(timezone=True), nullable=False),
        key=("cache_key",),
    )
    _create(
        "decisions",
        sa.Column("decision_id", sa.BigInteger(), autoincrement=False, nullable=False),
        sa.Column("action", sa.String(), nullable=False),
        sa.Column("state", sa.String(), nullable=False),
        sa.Column("attempt", sa.Integer(), nullable=False),
        sa.Column("run_id", sa.String(), nullable=True),
        sa.Column("leased_until", sa.DateTime(timezone=True), nullable=True),
        sa.Column("max_seq", sa.BigInteger(), autoincrement=False, nullable=False),
        sa.Column("decided_at", sa.DateTime(timezone=True), nullable=False),
        sa.Column("error", sa.Text(), nullable=True),
        sa.Column("record", sa.Text(), nullable=False),
        sa.CheckConstraint(
            "state IN ('held', 'pending', 'submitted', 'succeeded', 'failed')",
            name=op.f("ck_decisions_state"),
        ),
        key=("decision_id",),
    )
    op.create_index("ix_decisions_state", "decisions", [*SCOPE, "state"], unique=False)
    _create(
        "detector_states",
        sa.Column("model_version", sa.String(), nullable=False),
        sa.Column("stream", sa.String(), nullable=False),
        sa.Column("detector", sa.String(), nullable=False),
        sa.Column("last_seq", sa.BigInteger(), autoincrement=False, nullable=False),
        sa.Column("state", sa.Text(), nullable=False),
        sa.Column("saved_at", sa.DateTime(timezone=True), nullable=False),
        key=(
            "model_version",
            "stream",
            "detector",
        ),
    )
    _create(
        "gates",
        sa.Column("gate_id", sa.BigInteger(), autoincrement=False, nullable=False),
        sa.Column("candidate", sa.String(), nullable=False),
        sa.Column("decided_at", sa.DateTime(timezone=True), nullable=False),
        sa.Column("record", sa.Text(), nullable=False),
        key=("gate_id",),
    )
    _create(
        "heads",
        sa.Column("vote_seq", sa.BigInteger(), autoincrement=False, nullable=False),
        sa.Column("audit_seq", sa.BigInteger(), autoincrement=False, nullable=False),
        sa.Column("audit_hash", sa.String(length=64), nullable=False),
        key=(),
    )
    _create(
        "heartbeats",
        sa.Column("run_id", sa.String(), nullable=False),
        sa.Column("pid", sa.Integer(), nullable=False),
        sa.Column("host", sa.String(), nullable=False),
        sa.Column("job", sa.String(), nullable=False),
        sa.Column("started_at", sa.DateTime(timezone=True), nullable=False),
        sa.Column("at", sa.DateTime(timezone=True), nullable=False),
        key=("run_id",),
    )
    _create(
        "idempotency",
        sa.Column("idempotency_key", sa.String(), nullable=False),
        sa.Column("body_hash", sa.String(length=64), nullable=False),
        sa.Column("vote_id", sa.String(), nullable=False),
        sa.Column("recorded_at", sa.DateTime(timezone=True), nullable=False),
        key=("idempotency_key",),
    )
    _create(
        "promotions",
        sa.Column("promotion_id", sa.BigInteger(), autoincrement=False, nullable=False),
        sa.Column("model_name", sa.String(), nullable=False),
        sa.Column("version", sa.Integer(), nullable=False),
        sa.Column("promoted_at", sa.DateTime(timezone=True), nullable=False),
        sa.Column("record", sa.Text(), nullable=False),
        key=("promotion_id",),
    )
    op.create_index(
        "ix_promotions_model", "promotions", [*SCOPE, "model_name", "promotion_id"], unique=False
    )
    _create(
        "drift_events",
        sa.Column("event_id", sa.String(), nullable=False),
        sa.Column("kind", sa.String(), nullable=False),
        sa.Column("model_version", sa.String(), nullable=False),
        sa.Column("detector", sa.String(), nullable=False),
        sa.Column("params_hash", sa.String(), nullable=False),
        sa.Column("stream", sa.String(), nullable=False),
        sa.Column("seq", sa.BigInteger(), autoincrement=False, nullable=False),
        sa.Column("day", sa.String(length=10), nullable=False),
        sa.Column("detected_at", sa.DateTime(timezone=True), nullable=False),
        sa.Column("record", sa.Text(), nullable=False),
        sa.Column("decision_id", sa.BigInteger(), autoincrement=False, nullable=True),
        _refers("decision_id", "decisions", "fk_drift_events_decision_id_decisions"),
        sa.UniqueConstraint(
            *SCOPE,
            "model_version",
            "detector",
            "params_hash",
            "stream",
            "seq",
            name="uq_drift_events_detection",
        ),
        key=("event_id",),
    )
    op.create_index("ix_drift_events_day", "drift_events", [*SCOPE, "day"], unique=False)
    op.create_index(
        "ix_drift_events_decision", "drift_events", [*SCOPE, "decision_id"], unique=False
    )
    _create(
        "predictions",
        sa.Column("comparison_id", sa.String(), nullable=False),
        sa.Column("reward_model", sa.String(), nullable=False),
        sa.Column("day", sa.String(length=10), nullable=False),
        sa.Column("calibrator", sa.String(), nullable=False),
        sa.Column("data_hash", sa.String(), nullable=False),
        sa.Column("features_hash", sa.String(), nullable=False),
        sa.Column("score_a", sa.Float(), nullable=False),
        sa.Column("score_b", sa.Float(), nullable=False),
        sa.Column("p_raw", sa.Float(), nullable=False),
        sa.Column("p_calibrated", sa.Float(), nullable=False),
        sa.Column("predicted_at", sa.DateTime(timezone=True), nullable=False),
        sa.CheckConstraint(
            "p_raw BETWEEN 0 AND 1 AND p_calibrated BETWEEN 0 AND 1",
            name=op.f("ck_predictions_probabilities"),
        ),
        _refers("comparison_id", "comparisons", "fk_predictions_comparison_id_comparisons"),
        key=(
            "comparison_id",
            "reward_model",
        ),
    )
    op.create_index("ix_predictions_day", "predictions", [*SCOPE, "day"], unique=False)
    _create(
        "votes",
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
        sa.Column("voted_at", sa.DateTime(timezone=True), nullable=False),
        sa.Column("day", sa.String(length=10), nullable=False),
        sa.Column("received_at", sa.DateTime(timezone=True), nullable=False),
        sa.Column("origin", sa.String(), nullable=False),
        sa.Column("idempotency_key", sa.String(), nullable=False),
        sa.Column("supersedes", sa.String(), nullable=True),
        sa.Column(
            "pass_no", sa.Integer(), nullable=False, comment="1 first judgement, 2 repeat pass, …"
        ),
        sa.Column(
            "revision_no",
            sa.Integer(),
            nullable=False,
            comment="0 as cast, +1 by each superseding vote",
        ),
        sa.Column(
            "displaced_day",
            sa.String(length=10),
            nullable=True,
            comment="day of the vote it made not count",
        ),
        sa.CheckConstraint(
            "choice IN ('a', 'b', 'tie', 'both_bad', 'skip')", name=op.f("ck_votes_choice")
        ),
        sa.CheckConstraint(
            "strength IS NULL OR (choice IN ('a', 'b') AND strength BETWEEN 1 AND 4)",
            name=op.f("ck_votes_strength"),
        ),
        _refers("comparison_id", "comparisons", "fk_votes_comparison_id_comparisons"),
        sa.UniqueConstraint(
            *SCOPE, "comparison_id", "annotator_id", "pass_no", "revision_no", name="uq_votes_turn"
        ),
        sa.UniqueConstraint(*SCOPE, "supersedes", name="uq_votes_supersedes"),
        sa.UniqueConstraint(*SCOPE, "vote_id", name="uq_votes_vote_id"),
        key=("seq",),
    )
    op.create_index("ix_votes_day", "votes", [*SCOPE, "day", "seq"], unique=False)
    op.create_index(
        "ix_votes_displaced_day",
        "votes",
        [*SCOPE, "displaced_day", "seq"],
        unique=False,
        sqlite_where=sa.text("displaced_day IS NOT NULL"),
        postgresql_where=sa.text("displaced_day IS NOT NULL"),
    )


def downgrade() -> None:
    preservation.refuse_to_drop()
    tables = (
        "votes",
        "predictions",
        "drift_events",
        "promotions",
        "idempotency",
        "heartbeats",
        "heads",
        "gates",
        "detector_states",
        "decisions",
        "completion_cache",
        "comparisons",
        "calibrations",
        "audit",
    )
    for table in tables:
        op.drop_table(table)


def _create(name: str, *parts: sa.schema.SchemaItem, key: tuple[str, ...]) -> None:
    scope = [sa.Column(column, sa.String(), nullable=False) for column in SCOPE]
    op.create_table(
        name, *scope, *parts, sa.PrimaryKeyConstraint(*SCOPE, *key, name=op.f(f"pk_{name}"))
    )


def _refers(column: str, table: str, name: str) -> sa.ForeignKeyConstraint:
    return sa.ForeignKeyConstraint(
        [*SCOPE, column], [f"{table}.{c}" for c in (*SCOPE, column)], name=op.f(name)
    )

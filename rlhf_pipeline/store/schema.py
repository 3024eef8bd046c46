"""The tables of the store as of the newest migration."""

import hashlib
from collections.abc import Callable
from datetime import UTC, datetime
from typing import Any

from sqlalchemy import (
    BigInteger,
    Boolean,
    CheckConstraint,
    Column,
    DateTime,
    Dialect,
    Float,
    ForeignKeyConstraint,
    Index,
    Integer,
    MetaData,
    PrimaryKeyConstraint,
    String,
    Table,
    Text,
    TypeDecorator,
    UniqueConstraint,
    text,
)
from sqlalchemy.dialects.sqlite.base import SQLiteDialect
from sqlalchemy.schema import CreateIndex, CreateTable

from rlhf_pipeline.core.errors import UnstorableText

# Triggers refuse to change or remove their rows.
APPEND_ONLY = (
    *("votes", "predictions", "audit", "guidelines", "annotation_rules", "feedback"),
    *("dataset_versions", "dataset_rows", "dataset_sources", "pair_revisions"),
    *("feedback_reviews", "release_acts"),
)
ONLY_ROW = 1  # key of a table that has one row


class UTCDateTime(TypeDecorator[datetime]):
    """A time, always with its zone in Python: SQLite stores UTC without a zone, Postgres with
    one.
    """

    impl = DateTime(timezone=True)
    cache_ok = True

    def bind_processor(self, dialect: Dialect) -> Callable[[datetime | None], Any]:
        """SQLAlchemy's own processor for SQLite takes three times as long: 9 us a vote."""
        return _sqlite_text if dialect.name == "sqlite" else _in_utc

    def process_result_value(self, value: datetime | None, dialect: Dialect) -> datetime | None:
        if value is None:
            return None
        return value.replace(tzinfo=UTC) if value.tzinfo is None else value.astimezone(UTC)


def _in_utc(value: datetime | None) -> datetime | None:
    if value is None:
        return None
    if value.tzinfo is None:
        raise ValueError(f"{value} has no time zone")
    return value.astimezone(UTC)


def _sqlite_text(value: datetime | None) -> str | None:
    moment = _in_utc(value)
    return None if moment is None else moment.replace(tzinfo=None).isoformat(" ", "microseconds")


class StorableText(String):
    """A text without NUL characters, which Postgres refuses and at which SQLite's tools truncate
    it. `column` names it in the error.
    """

    def __init__(self, column: str, length: int | None = None):
        super().__init__(length)
        self.column = column

    def bind_processor(self, dialect: Dialect) -> Callable[[Any], Any]:
        column = self.column

        def refuse_nul(value: Any) -> Any:
            if isinstance(value, str) and "\0" in value:
                raise UnstorableText(
                    f"{column} holds a NUL character after {value.index(chr(0))} characters. "
                    "Remove it, then send it again."
                )
            return value

        return refuse_nul


class StorableLongText(StorableText, Text):
    """The same, declared as TEXT."""


# Names for every constraint, so that migrations can change them on both databases.
metadata = MetaData(
    naming_convention={
        "ix": "ix_%(table_name)s_%(column_0_N_name)s",
        "uq": "uq_%(table_name)s_%(column_0_N_name)s",
        "ck": "ck_%(table_name)s_%(constraint_name)s",
        "fk": "fk_%(table_name)s_%(column_0_name)s_%(referred_table_name)s",
        "pk": "pk_%(table_name)s",
    }
)


def _id(name: str, **more: Any) -> Column[str]:
    return Column(name, StorableText(name), nullable=more.pop("nullable", False), **more)


def _count(name: str, **more: Any) -> Column[int]:
    # As INTEGER, a key of SQLite is the row's own number and needs no index.
    number = BigInteger().with_variant(Integer(), "sqlite")
    return Column(name, number, nullable=more.pop("nullable", False), autoincrement=False, **more)


def _time(name: str, *, nullable: bool = False) -> Column[datetime]:
    return Column(name, UTCDateTime, nullable=nullable)


def _text(name: str, *, nullable: bool = False) -> Column[str]:
    return Column(name, StorableLongText(name), nullable=nullable)


def _table(name: str, *parts: Any, key: tuple[str, ...], **options: Any) -> Table:
    return Table(
        name,
        metadata,
        *parts,
        PrimaryKeyConstraint(*key),
        **options,
    )


def _refers(column: str, table: str) -> ForeignKeyConstraint:
    return ForeignKeyConstraint([column], [f"{table}.{column}"])


def _only_row() -> Column[int]:
    """The key of a table that has one row."""
    return Column(
        "chain_head_id",
        Integer,
        CheckConstraint(f"chain_head_id = {ONLY_ROW}", name="only_row"),
        nullable=False,
        autoincrement=False,
    )


comparisons = _table(
    "comparisons",
    _id("comparison_id"),
    Column("day", String(10), nullable=False),
    _id("prompt_id"),
    _text("prompt"),
    _id("completion_a_id"),
    _id("completion_b_id"),
    _text("completion_a"),
    _text("completion_b"),
    _id("model_version_a"),
    _id("model_version_b"),
    _id("category"),
    _id("repeat_of", nullable=True),
    _count("position"),
    _count("seed"),
    _time("published_at"),
    _id("source", nullable=True),
    _id("source_pair_id", nullable=True),
    _id("split_group", nullable=True),
    _id("split", nullable=True),
    _id("gold", nullable=True),
    _id("flag", nullable=True),
    _text("tags", nullable=True),
    _id("pair_key", nullable=True),
    _id("written_by", nullable=True),
    Index("ix_comparisons_day", "day", "position", "comparison_id"),
    Index("ix_comparisons_category", "category", "day", "position", "comparison_id"),
    # of the project's own comparisons too, which have none: pages ask whether there are any
    Index("ix_comparisons_source", "source", "day", "position", "comparison_id"),
    Index(
        "ix_comparisons_flag",
        "flag",
        "day",
        "position",
        "comparison_id",
        sqlite_where=text("flag IS NOT NULL"),
        postgresql_where=text("flag IS NOT NULL"),
    ),
    Index("ix_comparisons_pair_key", "pair_key"),
    Index("ix_comparisons_prompt", "comparison_id", "prompt_id", "repeat_of"),
    Index(
        "ix_comparisons_source_pair_id",
        "source_pair_id",
        unique=True,
        sqlite_where=text("source_pair_id IS NOT NULL"),
        postgresql_where=text("source_pair_id IS NOT NULL"),
    ),
    Index(  # gold cards are drawn from few rows among many: else each lease reads every comparison
        "ix_comparisons_gold",
        "day",
        "position",
        "comparison_id",
        sqlite_where=text("gold IS NOT NULL"),
        postgresql_where=text("gold IS NOT NULL"),
    ),
    key=("comparison_id",),
)

predictions = _table(
    "predictions",
    _id("comparison_id"),
    _id("reward_model"),
    Column("day", String(10), nullable=False),
    _id("calibrator"),
    _id("data_hash"),
    _id("features_hash"),
    Column("score_a", Float, nullable=False),
    Column("score_b", Float, nullable=False),
    Column("p_raw", Float, nullable=False),
    Column("p_calibrated", Float, nullable=False),
    _time("predicted_at"),
    Column(
        "is_replayed",
        Boolean,
        comment="written after the votes, by a model that had seen none of them",
    ),
    Column(
        "link_seq",
        BigInteger,
        nullable=False,
        comment="link of the audit chain that has the digest of the rows written with it",
    ),
    CheckConstraint("p_raw BETWEEN 0 AND 1 AND p_calibrated BETWEEN 0 AND 1", name="probabilities"),
    _refers("comparison_id", "comparisons"),
    Index("ix_predictions_day", "day"),
    key=("comparison_id", "reward_model"),
)

votes = _table(
    "votes",
    _count("seq"),
    _id("vote_id"),
    _id("comparison_id"),
    _id("annotator_id"),
    _id("annotator_kind"),
    _id("choice"),
    Column("strength", Integer),
    _text("reason", nullable=True),
    Column("stated_confidence", Float),
    Column("duration_s", Float),
    _time("voted_at", nullable=True),
    Column("day", String(10), nullable=False),
    _time("received_at"),
    _id("origin"),
    _id("idempotency_key"),
    _id("supersedes", nullable=True),
    Column("pass_no", Integer, nullable=False, comment="1 first judgement, 2 repeat pass, …"),
    Column(
        "revision_no", Integer, nullable=False, comment="0 as cast, +1 by each superseding vote"
    ),
    Column("displaced_day", String(10), comment="day of the vote it made not count"),
    _id("task_id", nullable=True),
    _id("card_id", nullable=True),
    Column("is_swapped", Boolean, comment="completion b was shown on the left"),
    Column("guideline_version", Integer),
    Column("is_blind", Boolean, comment="the annotator could not read others' votes"),
    _text("details", nullable=True),
    CheckConstraint("choice IN ('a', 'b', 'tie', 'both_bad', 'skip')", name="choice"),
    CheckConstraint(
        "strength IS NULL OR (choice IN ('a', 'b') AND strength BETWEEN 1 AND 4)", name="strength"
    ),
    UniqueConstraint("vote_id", name="uq_votes_vote_id"),
    UniqueConstraint("idempotency_key", name="uq_votes_idempotency_key"),
    UniqueConstraint(
        "comparison_id", "annotator_id", "pass_no", "revision_no", name="uq_votes_turn"
    ),
    UniqueConstraint("supersedes", name="uq_votes_supersedes"),
    _refers("comparison_id", "comparisons"),
    Index("ix_votes_day", "day", "seq"),
    Index("ix_votes_annotator", "annotator_id", "seq"),
    Index(
        "ix_votes_displaced_day",
        "displaced_day",
        "seq",
        sqlite_where=text("displaced_day IS NOT NULL"),
        postgresql_where=text("displaced_day IS NOT NULL"),
    ),
    key=("seq",),
)

audit = _table(
    "audit",
    _count("seq"),
    _time("at"),
    _id("actor"),
    _id("action"),
    _id("object_id"),
    Column("payload_digest", String(64), nullable=False),
    Column("prev_hash", String(64), nullable=False),
    Column("hash", String(64), nullable=False),
    key=("seq",),
)

chain_heads = _table(
    "chain_heads",
    _only_row(),
    _count("vote_seq"),
    _count("audit_seq"),
    Column("audit_hash", String(64), nullable=False),
    key=("chain_head_id",),
)

detector_states = _table(
    "detector_states",
    _id("model_version"),
    _id("stream"),
    _id("detector"),
    _count("last_seq"),
    _text("state"),
    _time("saved_at"),
    key=("model_version", "stream", "detector"),
)

decisions = _table(
    "decisions",
    _count("decision_id"),
    _id("action"),
    _id("state"),
    Column("attempt", Integer, nullable=False),
    _id("run_id", nullable=True),
    _time("leased_until", nullable=True),
    _count("max_seq"),
    _time("decided_at"),
    _id("actor", nullable=True),
    _id("remedy", nullable=True),
    _count("answers", nullable=True),
    _text("error", nullable=True),
    _text("record"),
    CheckConstraint(
        "state IN ('held', 'pending', 'submitted', 'succeeded', 'failed')", name="state"
    ),
    Index("ix_decisions_state", "state"),
    key=("decision_id",),
)

drift_events = _table(
    "drift_events",
    _id("event_id"),
    _id("kind"),
    _id("model_version"),
    _id("detector"),
    _id("params_hash"),
    _id("stream"),
    _count("seq"),
    Column("day", String(10), nullable=False),
    _time("detected_at"),
    _text("record"),
    _count("decision_id", nullable=True),
    Column("is_replayed", Boolean, nullable=True),
    UniqueConstraint(
        "model_version",
        "detector",
        "params_hash",
        "stream",
        "seq",
        name="uq_drift_events_detection",
    ),
    _refers("decision_id", "decisions"),
    Index("ix_drift_events_decision", "decision_id"),
    Index("ix_drift_events_day", "day"),
    key=("event_id",),
)

taste_changes = _table(
    "taste_changes",
    _count("change_id"),
    _count("change_seq"),
    _id("category", nullable=True),
    _text("cause"),
    _count("decision_id", nullable=True),
    _id("actor"),
    _time("recorded_at"),
    _time("retracted_at", nullable=True),
    _id("retracted_by", nullable=True),
    _text("retraction_reason", nullable=True),
    _refers("decision_id", "decisions"),
    key=("change_id",),
)

adjudications = _table(
    "adjudications",
    _count("adjudication_id"),
    _id("comparison_id"),
    _id("choice", nullable=True),
    _text("reason"),
    _count("at_seq"),
    _id("decided_by"),
    _time("decided_at"),
    _refers("comparison_id", "comparisons"),
    Index("ix_adjudications_comparison", "comparison_id", "adjudication_id"),
    key=("adjudication_id",),
)

promotions = _table(
    "promotions",
    _count("promotion_id"),
    _id("model_name"),
    Column("version", Integer, nullable=False),
    _time("promoted_at"),
    _text("record"),
    Index("ix_promotions_model", "model_name", "promotion_id"),
    key=("promotion_id",),
)

release_acts = _table(
    "release_acts",
    _count("act_id"),
    _id("model_name"),
    _id("act"),
    _count("request_id", nullable=True),
    _time("acted_at"),
    _text("record"),
    UniqueConstraint("request_id", name="uq_release_acts_request_id"),
    key=("act_id",),
)

gates = _table(
    "gates",
    _count("gate_id"),
    _id("candidate"),
    _time("decided_at"),
    _text("record"),
    key=("gate_id",),
)

gate_sessions = _table(
    "gate_sessions",
    _count("session_id"),
    _id("candidate"),
    _id("champion"),
    _id("state"),
    _count("n_wanted", comment="judgements asked so far"),
    Column("most_share", Float, nullable=False, comment="of them, by one annotator"),
    _time("opened_at"),
    _time("asked_at"),
    _time("closed_at", nullable=True),
    _text("record"),
    _text("prompts"),
    CheckConstraint("state IN ('open', 'held', 'decided', 'void')", name="state"),
    key=("session_id",),
)

calibrations = _table(
    "calibrations",
    _id("reward_model"),
    Column("version", Integer, nullable=False, autoincrement=False),
    _time("fitted_at"),
    _text("report"),
    _text("calibrator"),
    key=("reward_model", "version"),
)

imports = _table(
    "imports",
    _count("import_id"),
    _id("kind"),
    _text("file"),
    _id("state"),
    _time("started_at"),
    _time("finished_at", nullable=True),
    _text("record"),
    CheckConstraint("state IN ('started', 'finished', 'failed')", name="state"),
    key=("import_id",),
)

replays = _table(
    "replays",
    Column("day", String(10), nullable=False),
    _id("state"),
    _time("asked_at"),
    _time("done_at", nullable=True),
    CheckConstraint("state IN ('pending', 'done')", name="state"),
    key=("day",),
)

heartbeats = _table(
    "heartbeats",
    _id("run_id"),
    Column("pid", Integer, nullable=False),
    _id("host"),
    _id("job"),
    _time("started_at"),
    _time("at"),
    key=("run_id",),
)

completion_cache = _table(
    "completion_cache",
    _id("cache_key"),
    _text("value"),
    _time("used_at"),
    key=("cache_key",),
)

generation_runs = _table(
    "generation_runs",
    _id("run_id"),
    _id("asset"),
    _count("n_items"),
    _text("record"),
    _id("origin", nullable=True),
    _time("started_at"),
    _time("ended_at", nullable=True),
    _time("paused_until", nullable=True),
    _text("pause_reason", nullable=True),
    key=("run_id",),
)

generation_items = _table(
    "generation_items",
    _id("run_id"),
    _count("item_no"),
    _count("position"),
    _id("prompt_id"),
    _id("provider"),
    _id("model"),
    Column("sample_index", Integer, nullable=False),
    _text("params"),
    _id("cache_key"),
    _id("state"),
    _id("owner", nullable=True),
    _time("leased_until", nullable=True),
    _time("not_before", nullable=True),
    _count("reserved"),
    Column("is_metered", Boolean, nullable=False),
    Column("is_cached", Boolean, nullable=False, comment="succeeded without a call of its own"),
    Column("n_attempts", Integer, nullable=False),
    Column("n_faults", Integer, nullable=False, comment="attempts that count against the item"),
    _id("kind", nullable=True),
    _text("error", nullable=True),
    _time("settled_at", nullable=True),
    CheckConstraint("state IN ('open', 'leased', 'succeeded', 'failed')", name="state"),
    _refers("run_id", "generation_runs"),
    Index(
        "ix_generation_items_to_do",
        "run_id",
        "provider",
        "model",
        "position",
        sqlite_where=text("state = 'open'"),
        postgresql_where=text("state = 'open'"),
    ),
    Index(  # few rows at any moment: equal keys under way, and what all runs have reserved
        "ix_generation_items_leased",
        "cache_key",
        sqlite_where=text("state = 'leased'"),
        postgresql_where=text("state = 'leased'"),
    ),
    key=("run_id", "item_no"),
)

generation_attempts = _table(
    "generation_attempts",
    _id("run_id"),
    _count("item_no"),
    Column("attempt_no", Integer, nullable=False, autoincrement=False),
    _id("provider"),
    _id("model"),
    _time("started_at"),
    Column("latency_ms", Float, nullable=False),
    _id("outcome"),
    _id("kind"),
    Column("status", Integer),
    _count("n_prompt_tokens"),
    _count("n_tokens"),
    _count("cost"),
    _id("billing"),
    Column("wait_s", Float, comment="that the provider asked for"),
    _text("error", nullable=True),
    Column("partial", Text, comment="text of a stream that broke"),
    CheckConstraint("outcome IN ('succeeded', 'retryable', 'terminal', 'lost')", name="outcome"),
    CheckConstraint("billing IN ('metered', 'none', 'unknown')", name="billing"),
    _refers("run_id", "generation_runs"),
    key=("run_id", "item_no", "attempt_no"),
)

generation_spending = _table(
    "generation_spending",
    _id("run_id"),
    Column("day", String(10), nullable=False),
    _id("provider"),
    _id("model"),
    _id("asset"),
    _count("n_calls"),
    _count("n_unknown"),
    _count("n_prompt_tokens"),
    _count("n_tokens"),
    _count("cost"),
    _count("cost_unknown"),
    _refers("run_id", "generation_runs"),
    Index("ix_generation_spending_day", "day"),
    Index("ix_generation_spending_provider", "provider"),
    key=("run_id", "day", "provider", "model"),
)

offers = _table(
    "offers",
    _id("comparison_id"),
    _id("offered_to", comment="the annotator who was asked by name; empty = anybody"),
    _id("reserved_for", comment="the annotator who alone is dealt it; empty = anybody"),
    _count("priority"),
    Column("n_wanted", Integer, nullable=False, comment="judgements"),
    Column(
        "n_done",
        Integer,
        nullable=False,
        comment="judged cards that have a place in it, and votes from files",
    ),
    _time("offered_at"),
    CheckConstraint("n_done BETWEEN 0 AND n_wanted", name="places"),
    _refers("comparison_id", "comparisons"),
    Index(
        "ix_offers_to_do",
        "reserved_for",
        "priority",
        "comparison_id",
        sqlite_where=text("n_done < n_wanted"),
        postgresql_where=text("n_done < n_wanted"),
    ),
    key=("comparison_id", "offered_to"),
)

cards = _table(
    "cards",
    _id("card_id"),
    _id("comparison_id"),
    _id("annotator_id"),
    Column("pass_no", Integer, nullable=False),
    _id("kind"),
    Column("is_swapped", Boolean, nullable=False),
    _count("n", comment="place in the annotator's sequence of cards, from 1"),
    _id("state"),
    _id("offered_to", nullable=True, comment="offer in which the card has a place, if any"),
    _time("leased_at"),
    _time("leased_until"),
    _time("settled_at", nullable=True),
    CheckConstraint("kind IN ('normal', 'repeat', 'gold', 'rating')", name="kind"),
    CheckConstraint("state IN ('leased', 'voted', 'rated', 'skipped', 'released')", name="state"),
    UniqueConstraint("comparison_id", "annotator_id", "pass_no", name="uq_cards_turn"),
    _refers("comparison_id", "comparisons"),
    Index("ix_cards_annotator", "annotator_id", "n", unique=True),
    Index("ix_cards_state", "annotator_id", "state", "settled_at"),
    Index(
        "ix_cards_leased",
        "comparison_id",
        "leased_until",
        sqlite_where=text("state = 'leased'"),
        postgresql_where=text("state = 'leased'"),
    ),
    key=("card_id",),
)

users = _table(
    "users",
    _id("user_id"),
    _id("email"),
    _text("name"),
    _id("kind"),
    _text("password_hash", nullable=True),
    _time("created_at"),
    _time("disabled_at", nullable=True),
    _time("paused_at", nullable=True),
    CheckConstraint("kind IN ('person', 'service')", name="kind"),
    UniqueConstraint("email", name="uq_users_email"),
    key=("user_id",),
)

role_grants = _table(
    "role_grants",
    _id("user_id"),
    _id("role"),
    _time("granted_at"),
    _id("granted_by"),
    _refers("user_id", "users"),
    key=("user_id", "role"),
)

tokens = _table(
    "tokens",
    Column("token_hash", String(64), nullable=False),
    _id("user_id"),
    _id("kind"),
    _text("name", nullable=True),
    _text("scopes", nullable=True),
    _time("created_at"),
    _time("expires_at"),
    _time("last_used_at", nullable=True),
    _time("revoked_at", nullable=True),
    CheckConstraint("kind IN ('api', 'session', 'login')", name="kind"),
    _refers("user_id", "users"),
    Index("ix_tokens_user", "user_id"),
    key=("token_hash",),
)

failed_logins = _table(
    "failed_logins",
    _id("subject_hash"),
    Column("n_failed", Integer, nullable=False),
    _time("last_failed_at"),
    key=("subject_hash",),
)

guidelines = _table(
    "guidelines",
    Column("version", Integer, nullable=False, autoincrement=False),
    _text("text"),
    _time("created_at"),
    _id("created_by"),
    key=("version",),
)

annotation_rules = _table(
    "annotation_rules",
    Column("version", Integer, nullable=False, autoincrement=False),
    _text("record"),
    _time("created_at"),
    _id("created_by"),
    key=("version",),
)

evaluation_sets = _table(
    "evaluation_sets",
    Column("version", Integer, nullable=False, autoincrement=False),
    _text("origin"),
    _id("prompts_hash"),
    _count("n_prompts"),
    _text("prompts"),
    _time("created_at"),
    key=("version",),
)

feedback = _table(
    "feedback",
    _count("feedback_id"),
    _id("kind"),
    _id("session_id", nullable=True),
    _id("created_by"),
    _time("created_at"),
    _text("record"),
    _id("comparison_id", nullable=True),
    _id("vote_id", nullable=True),
    _id("idempotency_key", nullable=True),
    UniqueConstraint("idempotency_key", name="uq_feedback_idempotency_key"),
    CheckConstraint("kind IN ('thumbs', 'rating', 'correction', 'detailed')", name="kind"),
    Index("ix_feedback_session", "session_id", "feedback_id"),
    key=("feedback_id",),
)

# What curators decided about an entry: its newest review holds, and without one it is pending.
feedback_reviews = _table(
    "feedback_reviews",
    _count("feedback_id"),
    _count("review_id", comment="of all entries that were reviewed at once"),
    _id("status"),
    _text("tags"),
    _text("notes", nullable=True),
    _id("reviewed_by"),
    _time("reviewed_at"),
    CheckConstraint("status IN ('pending', 'approved', 'rejected')", name="status"),
    _refers("feedback_id", "feedback"),
    Index("ix_feedback_reviews_review", "review_id", "feedback_id"),
    key=("feedback_id", "review_id"),
)

answers = _table(
    "answers",
    _id("answer_id"),
    _id("version"),
    _id("session_id", nullable=True),
    _time("created_at"),
    Column("latency_s", Float, nullable=False),
    _count("n_prompt_tokens"),
    _count("n_tokens"),
    _count("cost", nullable=True, comment="billionths of the currency of the prices"),
    _id("finish_reason"),
    _text("error", nullable=True),
    _text("prompt", nullable=True),
    _text("completion", nullable=True),
    _count("experiment_id", nullable=True),
    _id("arm", nullable=True),
    Column("traffic_split", Float, nullable=True, comment="share of the treatment then"),
    Index("ix_answers_created", "created_at"),
    Index("ix_answers_experiment", "experiment_id", "created_at"),
    key=("answer_id",),
)

experiments = _table(
    "experiments",
    _count("experiment_id"),
    _id("status"),
    _text("record"),
    CheckConstraint(
        "status IN ('draft', 'running', 'paused', 'completed', 'cancelled')", name="status"
    ),
    key=("experiment_id",),
)

datasets = _table(
    "datasets",
    _count("dataset_id"),
    _text("name"),
    _text("description"),
    _id("type"),
    _id("status"),
    _text("query"),
    _count("n_rows", comment="of the last build"),
    _text("quality", nullable=True),
    _text("last_export", nullable=True),
    _id("created_by"),
    _time("created_at"),
    _time("updated_at"),
    CheckConstraint("type IN ('preference', 'sft', 'unpaired')", name="type"),
    CheckConstraint(
        "status IN ('draft', 'curating', 'ready', 'exported', 'archived')", name="status"
    ),
    UniqueConstraint("name", name="uq_datasets_name"),
    key=("dataset_id",),
)

dataset_versions = _table(
    "dataset_versions",
    _count("dataset_id"),
    Column("version", Integer, nullable=False, autoincrement=False),
    Column("content_hash", String(64), nullable=False),
    _count("n_rows"),
    _text("query"),
    _text("quality"),
    _id("frozen_by"),
    _time("frozen_at"),
    _refers("dataset_id", "datasets"),
    Index("ix_dataset_versions_content", "content_hash"),
    key=("dataset_id", "version"),
)

# The rows of versions, by the hash of all of them: equal versions share theirs.
dataset_rows = _table(
    "dataset_rows",
    Column("content_hash", String(64), nullable=False),
    _count("row_no"),
    _text("record"),
    key=("content_hash", "row_no"),
)

dataset_sources = _table(
    "dataset_sources",
    _id("source", comment="comparison:ID, feedback:ID or pair:ID"),
    Column("content_hash", String(64), nullable=False),
    key=("source", "content_hash"),
)

pair_revisions = _table(
    "pair_revisions",
    _count("pair_id"),
    Column("revision", Integer, nullable=False, autoincrement=False),
    _count("dataset_id"),
    _id("status"),
    _text("record"),
    _id("edited_by"),
    _time("edited_at"),
    CheckConstraint("status IN ('accepted', 'rejected')", name="status"),
    _refers("dataset_id", "datasets"),
    Index("ix_pair_revisions_dataset", "dataset_id", "pair_id"),
    key=("pair_id", "revision"),
)

metric_points = _table(
    "metric_points",
    Column("day", String(10), nullable=False),
    _id("name"),
    _text("labels"),
    _count("n"),
    Column("total", Float),
    Column("total_squares", Float),
    Column("value", Float),
    Column("low", Float),
    Column("high", Float),
    _time("measured_at"),
    Index("ix_metric_points_name", "name", "day"),
    key=("day", "name", "labels"),
)

annotator_groups = _table(
    "annotator_groups",
    _id("annotator_id"),
    _id("name"),
    key=("annotator_id",),
)

alerts = _table(
    "alerts",
    _count("alert_id"),
    _id("rule"),
    _id("subject"),
    _id("state"),
    _time("opened_at"),
    _time("ended_at", nullable=True),
    _text("record"),
    CheckConstraint("state IN ('pending', 'open', 'acknowledged', 'resolved')", name="state"),
    Index(
        "ux_alerts_not_ended",
        "rule",
        "subject",
        unique=True,
        sqlite_where=text("ended_at IS NULL"),
        postgresql_where=text("ended_at IS NULL"),
    ),
    key=("alert_id",),
)

alert_messages = _table(
    "alert_messages",
    _id("message_id"),
    _count("alert_id", nullable=True),
    _id("target"),
    _id("kind"),
    _text("payload"),
    _id("state"),
    Column("n_attempts", Integer, nullable=False),
    _time("created_at"),
    _time("next_attempt_at"),
    _time("delivered_at", nullable=True),
    _text("last_error", nullable=True),
    CheckConstraint("state IN ('pending', 'delivered', 'dead')", name="state"),
    Index("ix_alert_messages_due", "state", "next_attempt_at"),
    Index("ix_alert_messages_alert", "alert_id"),
    key=("message_id",),
)


def fingerprint() -> str:
    """12 hexadecimal digits that change with any table, constraint, index or append-only trigger;
    equal on both databases.
    """
    dialect = SQLiteDialect()
    statements = [*APPEND_ONLY]
    for table in metadata.sorted_tables:
        statements.append(str(CreateTable(table).compile(dialect=dialect)))
        statements += sorted(
            str(CreateIndex(index).compile(dialect=dialect)) for index in table.indexes
        )
    return hashlib.sha256("\n".join(statements).encode()).hexdigest()[:12]

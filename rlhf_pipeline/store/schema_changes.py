"""The changes of the tables since 0.1.0, in order: an older store gets those that it lacks."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from sqlalchemy import (
    BigInteger,
    CheckConstraint,
    Column,
    DateTime,
    Float,
    ForeignKeyConstraint,
    Integer,
    PrimaryKeyConstraint,
    String,
    Text,
    UniqueConstraint,
)

if TYPE_CHECKING:  # 0.1 s, and only an upgrade needs it
    from alembic.operations import Operations


@dataclass(frozen=True)
class SchemaChange:
    """One step from the tables before it to its own, on SQLite and Postgres.

    title: in the imperative, for the log.
    apply: changes the tables by Alembic's operations and moves rows by `operations.execute`. It
        names columns with SQLAlchemy's own types and not by schema.py, which further changes alter.
    fingerprint: of schema.py with this change.
    """

    title: str
    apply: "Callable[[Operations], None]"
    fingerprint: str


def _number(name: str, *, nullable: bool = False) -> Column[int]:
    number = BigInteger().with_variant(Integer(), "sqlite")
    return Column(name, number, nullable=nullable, autoincrement=False)


def _text(name: str, *, nullable: bool = False) -> Column[str]:
    return Column(name, Text, nullable=nullable)


def _id(name: str, length: int | None = None) -> Column[str]:
    return Column(name, String(length), nullable=False)


def _time(name: str) -> Column[Any]:
    return Column(name, DateTime(timezone=True), nullable=False)


def _refers_to_dataset(table: str) -> ForeignKeyConstraint:
    name = f"fk_{table}_dataset_id_datasets"
    return ForeignKeyConstraint(["dataset_id"], ["datasets.dataset_id"], name=name)


def _add_datasets(operations: "Operations") -> None:
    operations.create_table(
        "datasets",
        _number("dataset_id"),
        *(_text("name"), _text("description"), _id("type"), _id("status"), _text("query")),
        _number("n_rows"),
        *(_text("quality", nullable=True), _text("last_export", nullable=True)),
        *(_id("created_by"), _time("created_at"), _time("updated_at")),
        CheckConstraint("type IN ('preference', 'sft', 'unpaired')", name="type"),
        CheckConstraint(
            "status IN ('draft', 'curating', 'ready', 'exported', 'archived')", name="status"
        ),
        UniqueConstraint("name", name="uq_datasets_name"),
        PrimaryKeyConstraint("dataset_id"),
    )
    operations.create_table(
        "dataset_versions",
        _number("dataset_id"),
        Column("version", Integer, nullable=False, autoincrement=False),
        _id("content_hash", 64),
        _number("n_rows"),
        *(_text("query"), _text("quality"), _id("frozen_by"), _time("frozen_at")),
        _refers_to_dataset("dataset_versions"),
        PrimaryKeyConstraint("dataset_id", "version"),
    )
    operations.create_index("ix_dataset_versions_content", "dataset_versions", ["content_hash"])
    operations.create_table(
        "dataset_rows",
        *(_id("content_hash", 64), _number("row_no"), _text("record")),
        PrimaryKeyConstraint("content_hash", "row_no"),
    )
    operations.create_table(
        "dataset_sources",
        *(_id("source"), _id("content_hash", 64)),
        PrimaryKeyConstraint("source", "content_hash"),
    )
    operations.create_table(
        "pair_revisions",
        _number("pair_id"),
        Column("revision", Integer, nullable=False, autoincrement=False),
        *(_number("dataset_id"), _id("status"), _text("record")),
        *(_id("edited_by"), _time("edited_at")),
        CheckConstraint("status IN ('accepted', 'rejected')", name="status"),
        _refers_to_dataset("pair_revisions"),
        PrimaryKeyConstraint("pair_id", "revision"),
    )
    operations.create_index(
        "ix_pair_revisions_dataset", "pair_revisions", ["dataset_id", "pair_id"]
    )


def _add_tags(operations: "Operations") -> None:
    operations.add_column("comparisons", _text("tags", nullable=True))


def _add_feedback_reviews(operations: "Operations") -> None:
    operations.create_table(
        "feedback_reviews",
        *(_number("feedback_id"), _number("review_id"), _id("status")),
        *(_text("tags"), _text("notes", nullable=True), _id("reviewed_by"), _time("reviewed_at")),
        CheckConstraint("status IN ('pending', 'approved', 'rejected')", name="status"),
        ForeignKeyConstraint(
            ["feedback_id"],
            ["feedback.feedback_id"],
            name="fk_feedback_reviews_feedback_id_feedback",
        ),
        PrimaryKeyConstraint("feedback_id", "review_id"),
    )
    operations.create_index(
        "ix_feedback_reviews_review", "feedback_reviews", ["review_id", "feedback_id"]
    )


def _add_answers(operations: "Operations") -> None:
    operations.create_table(
        "answers",
        *(_id("answer_id"), _id("version"), Column("session_id", String), _time("created_at")),
        Column("latency_s", Float, nullable=False),
        *(_number("n_prompt_tokens"), _number("n_tokens"), _number("cost", nullable=True)),
        _id("finish_reason"),
        *(_text(name, nullable=True) for name in ("error", "prompt", "completion")),
        PrimaryKeyConstraint("answer_id"),
    )
    operations.create_index("ix_answers_created", "answers", ["created_at"])


def _add_ratings(operations: "Operations") -> None:
    kinds, states = "'normal', 'repeat', 'gold'", "'leased', 'voted', 'rated', 'skipped'"
    with operations.batch_alter_table("cards") as cards:
        for column in ("kind", "state"):
            cards.drop_constraint(operations.f(f"ck_cards_{column}"), type_="check")
        cards.create_check_constraint("kind", f"kind IN ({kinds}, 'rating')")
        cards.create_check_constraint("state", f"state IN ({states}, 'released')")


def _add_release_acts(operations: "Operations") -> None:
    operations.create_table(
        "release_acts",
        *(_number("act_id"), _id("model_name"), _id("act")),
        Column("request_id", BigInteger().with_variant(Integer(), "sqlite"), nullable=True),
        *(_time("acted_at"), _text("record")),
        UniqueConstraint("request_id", name="uq_release_acts_request_id"),
        PrimaryKeyConstraint("act_id"),
    )


def _add_gate_sessions(operations: "Operations") -> None:
    operations.create_table(
        "gate_sessions",
        _number("session_id"),
        *(_id("candidate"), _id("champion"), _id("state"), _number("n_wanted")),
        Column("most_share", Float, nullable=False),
        *(_time("opened_at"), _time("asked_at")),
        Column("closed_at", DateTime(timezone=True)),
        *(_text("record"), _text("prompts")),
        CheckConstraint("state IN ('open', 'held', 'decided', 'void')", name="state"),
        PrimaryKeyConstraint("session_id"),
    )


def _add_experiments(operations: "Operations") -> None:
    operations.create_table(
        "experiments",
        *(_number("experiment_id"), _id("status"), _text("record")),
        CheckConstraint(
            "status IN ('draft', 'running', 'paused', 'completed', 'cancelled')", name="status"
        ),
        PrimaryKeyConstraint("experiment_id"),
    )
    operations.add_column("answers", _number("experiment_id", nullable=True))
    operations.add_column("answers", Column("arm", String))
    operations.add_column("answers", Column("traffic_split", Float))
    operations.create_index("ix_answers_experiment", "answers", ["experiment_id", "created_at"])


def _drop_batches(operations: "Operations") -> None:
    operations.execute(
        "UPDATE generation_items SET state = 'open', owner = NULL "
        "WHERE state = 'leased' AND leased_until IS NULL"
    )
    operations.drop_table("generation_batches")


BASE = "6119e5780122"  # fingerprint of schema.py in 0.1.0
CHANGES: tuple[SchemaChange, ...] = (
    SchemaChange("add curated data sets", _add_datasets, "0d8ca958229b"),
    SchemaChange("add tags of imported comparisons", _add_tags, "8dd33ea6835c"),
    SchemaChange("add reviews of feedback", _add_feedback_reviews, "1a56bca7cf4c"),
    SchemaChange("add the log of served answers", _add_answers, "8716139d6455"),
    SchemaChange("add cards that ask for a rating", _add_ratings, "688f3391c9a7"),
    SchemaChange("add release acts", _add_release_acts, "83090882d19a"),
    SchemaChange("add sessions of the gate", _add_gate_sessions, "e738ccdc1605"),
    SchemaChange("add experiments", _add_experiments, "e688fe795af3"),
    SchemaChange("drop batches of requests to providers", _drop_batches, "0fc861da688d"),
)


def list_versions(changes: Sequence[SchemaChange] = CHANGES) -> list[str]:
    """The version of the tables in 0.1.0 and after each change: its number and the fingerprint.

    >>> list_versions(())
    ['0-6119e5780122']
    """
    fingerprints = [BASE, *(change.fingerprint for change in changes)]
    return [f"{number}-{fingerprint}" for number, fingerprint in enumerate(fingerprints)]

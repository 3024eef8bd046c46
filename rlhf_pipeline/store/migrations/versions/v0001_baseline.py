"""The first version: the tables of schema.py, triggers of append-only tables.

Until 0.1.0 is released the revision is a fingerprint of the schema, so a store with other tables
is not found here and is refused. With the release this file becomes literal SQL with a fixed
revision, and later versions follow it.
"""

from alembic import op

from rlhf_pipeline.store.migrations import HEAD
from rlhf_pipeline.store.schema import APPEND_ONLY, metadata

revision = HEAD
down_revision = None

# Rows of an index, rows that share its first column, its first two, and so on. SQLite guesses ten
# for the first column, so it would read all cards of an annotator to find those held, and begin a
# page of the newest votes of a category with all comparisons of it. Postgres measures for itself.
STATISTICS = (
    ("cards", "ix_cards_annotator", "1000000 3000 1"),
    ("cards", "ix_cards_state", "1000000 3000 50 1"),
    ("offers", "ix_offers_to_do", "1000000 300000 100000 1"),
    ("comparisons", "ix_comparisons_category", "1000000 100000 1000 1 1"),
    ("comparisons", "ix_comparisons_source", "1000000 100000 1000 1 1"),
    ("comparisons", "ix_comparisons_flag", "10000 3000 30 1 1"),
)


def upgrade() -> None:
    connection = op.get_bind()
    metadata.create_all(connection, checkfirst=False)
    if connection.dialect.name == "sqlite":
        _refuse_changes_on_sqlite()
        _write_planner_statistics()
    else:
        _refuse_changes_on_postgres()


def _refuse_changes_on_sqlite() -> None:
    for table in APPEND_ONLY:
        for change in ("update", "delete"):
            op.execute(
                f"CREATE TRIGGER {table}_refuse_{change} BEFORE {change.upper()} ON {table} BEGIN "
                f"SELECT RAISE(ABORT, '{table} is append-only'); END"
            )


def _refuse_changes_on_postgres() -> None:
    op.execute(
        "CREATE FUNCTION refuse_change() RETURNS trigger LANGUAGE plpgsql AS "
        "$$ BEGIN RAISE EXCEPTION '% is append-only', TG_TABLE_NAME; END $$"
    )
    for table in APPEND_ONLY:
        op.execute(
            f"CREATE TRIGGER {table}_refuse_change BEFORE UPDATE OR DELETE OR TRUNCATE ON {table} "
            "FOR EACH STATEMENT EXECUTE FUNCTION refuse_change()"
        )


def _write_planner_statistics() -> None:
    op.execute("ANALYZE")  # makes the table of statistics
    for table, index, rows in STATISTICS:
        op.execute(f"INSERT INTO sqlite_stat1 VALUES ('{table}', '{index}', '{rows}')")

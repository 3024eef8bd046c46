"""The first version: the tables of schema.py, triggers of append-only tables, SQLite's statistics.

Until 0.1.0 is released the revision is a fingerprint of the schema, so a store with other tables
is not found here and is refused. With the release this file becomes literal SQL with a fixed
revision, and later versions follow it.
"""

from pathlib import Path

from alembic import op

from rlhf_pipeline.store.migrations import HEAD
from rlhf_pipeline.store.schema import APPEND_ONLY, metadata

revision = HEAD
down_revision = None


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
    sql = Path(__file__).with_name("v0001_sqlite_statistics.sql").read_text(encoding="utf-8")
    for statement in sql.rstrip(";\n").split(";\n"):
        op.execute(statement)

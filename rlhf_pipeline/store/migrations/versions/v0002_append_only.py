"""Version 0002: the database itself refuses to change or remove votes, predictions and audit
links.
"""

from alembic import op

revision = "0002"
down_revision = "0001"

TABLES = ("votes", "predictions", "audit")


def upgrade() -> None:
    if op.get_bind().dialect.name == "sqlite":
        for table in TABLES:
            create_triggers(table)
        return
    op.execute(
        "CREATE FUNCTION refuse_change() RETURNS trigger LANGUAGE plpgsql AS "
        "$$ BEGIN RAISE EXCEPTION '% is append-only', TG_TABLE_NAME; END $$"
    )
    for table in TABLES:
        op.execute(
            f"CREATE TRIGGER {table}_refuse_change BEFORE UPDATE OR DELETE OR TRUNCATE ON {table} "
            "FOR EACH STATEMENT EXECUTE FUNCTION refuse_change()"
        )


def downgrade() -> None:
    if op.get_bind().dialect.name == "sqlite":
        for table in TABLES:
            drop_triggers(table)
        return
    for table in TABLES:
        op.execute(f"DROP TRIGGER {table}_refuse_change ON {table}")
    op.execute("DROP FUNCTION refuse_change()")


def create_triggers(table: str) -> None:
    """On SQLite; a later version that rebuilds the table needs them again."""
    for act in ("UPDATE", "DELETE"):
        op.execute(
            f"CREATE TRIGGER {table}_refuse_{act.lower()} BEFORE {act} ON {table} BEGIN SELECT "
            f"RAISE(ABORT, '{table} is append-only'); END"
        )


def drop_triggers(table: str) -> None:
    for act in ("update", "delete"):
        op.execute(f"DROP TRIGGER {table}_refuse_{act}")

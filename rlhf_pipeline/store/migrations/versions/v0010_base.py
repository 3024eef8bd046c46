"""Version 0010: the tables, indexes and triggers that every later version starts from.

Literal SQL, because schema.py describes the newest version and a migration must not change with it.
"""

from pathlib import Path

from alembic import op

revision = "0010"
down_revision = None

TIMESTAMP = {"sqlite": "DATETIME", "postgresql": "TIMESTAMP WITH TIME ZONE"}


def upgrade() -> None:
    dialect = op.get_bind().dialect.name
    for part in ("tables", dialect):
        sql = Path(__file__).with_name(f"v0010_{part}.sql").read_text(encoding="utf-8")
        for statement in sql.replace("{timestamp}", TIMESTAMP[dialect]).rstrip(";\n").split(";\n"):
            op.execute(statement)

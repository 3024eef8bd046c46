"""Version 0018: indexes by which comparisons are listed by source and by flag."""

from alembic import op

revision = "0018"
down_revision = "0017"

SCOPE = ("organization_id", "project_id")
PLACE = ("day", "position", "comparison_id")
# How their rows are spread, as version 0010 says it of the other indexes.
SPREAD = {
    "source": "1000000 1000000 1000000 100000 1000 1 1",
    "flag": "10000 10000 10000 3000 30 1 1",
}


def upgrade() -> None:
    is_sqlite = op.get_bind().dialect.name == "sqlite"
    for column, spread in SPREAD.items():
        name = f"ix_comparisons_{column}"
        columns = ", ".join((*SCOPE, column, *PLACE))
        op.execute(f"CREATE INDEX {name} ON comparisons ({columns}) WHERE {column} IS NOT NULL")
        if is_sqlite:
            op.execute(
                "INSERT INTO sqlite_stat1 (tbl, idx, stat) "
                f"VALUES ('comparisons', '{name}', '{spread}')"
            )

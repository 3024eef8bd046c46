"""Version 0003: SQLite's planner is told how rows are spread, because it cannot guess that all
belong to one project.

Every index begins with organization and project. Without statistics SQLite takes each such equality
for selective, prefers any index with a range on top, and reads a day's snapshot by scanning all
votes for each vote. Postgres measures for itself.
"""

from alembic import op
from sqlalchemy import text

revision = "0003"
down_revision = "0002"

N_ROWS = 1_000_000
SCOPE = ("organization_id", "project_id")
# Expected rows that share a value of the column (with the columns before it); 1 where it is not
# named.
ROWS_PER_VALUE = {
    "day": 3_000,
    "displaced_day": 300,
    "comparison_id": 5,
    "model_name": 50,
    "model_version": 50,
    "state": 50,
}


def upgrade() -> None:
    bind = op.get_bind()
    if bind.dialect.name != "sqlite":
        return
    op.execute("ANALYZE")  # makes the table of statistics
    tables = (
        bind.execute(
            text("SELECT name FROM sqlite_master WHERE type = 'table' AND name NOT LIKE 'sqlite_%'")
        )
        .scalars()
        .all()
    )
    for table in sorted(set(tables) - {"alembic_version"}):
        for index in bind.execute(text(f"PRAGMA index_list({table})")).mappings().all():
            columns = [
                row["name"]
                for row in bind.execute(text(f"PRAGMA index_info({index['name']})")).mappings()
            ]
            spread = " ".join(
                str(n) for n in (N_ROWS, *_spread(columns, is_unique=bool(index["unique"])))
            )
            bind.execute(
                text("DELETE FROM sqlite_stat1 WHERE tbl = :t AND idx = :i"),
                {"t": table, "i": index["name"]},
            )
            bind.execute(
                text("INSERT INTO sqlite_stat1 (tbl, idx, stat) VALUES (:t, :i, :s)"),
                {"t": table, "i": index["name"], "s": spread},
            )


def downgrade() -> None:
    if op.get_bind().dialect.name == "sqlite":
        op.execute("DELETE FROM sqlite_stat1")


def _spread(columns: list[str], *, is_unique: bool) -> list[int]:
    """Rows per distinct value of each prefix of the index's columns, never growing."""
    rows, spread = N_ROWS, []
    for column in columns:
        rows = min(rows, N_ROWS if column in SCOPE else ROWS_PER_VALUE.get(column, 1))
        spread.append(rows)
    return [*spread[:-1], 1] if is_unique else spread

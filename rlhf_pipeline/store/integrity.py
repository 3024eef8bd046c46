"""Checks references between rows of the store, which the audit chain does not hold."""

from collections import Counter

from rlhf_pipeline.store.engine import Database


def find_orphans(database: Database) -> list[str]:
    """Rows of an edited or damaged SQLite file that refer to missing ones; Postgres has none."""
    if not database.is_sqlite:
        return []
    with database.read_transaction() as connection:
        found = connection.exec_driver_sql("PRAGMA foreign_key_check").all()
    numbers = Counter((table, parent) for table, _, parent, _ in found)
    return [f"{n} {table} refer to missing {parent}." for (table, parent), n in numbers.items()]

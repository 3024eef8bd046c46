"""Read-only checks of the store beside the audit chain: references and clocks."""

from collections import Counter
from datetime import datetime

from sqlalchemy import Connection, or_, select

from rlhf_pipeline.store.engine import Database
from rlhf_pipeline.store.schema import votes


def find_votes_after(database: Database, moment: datetime) -> list[int]:
    """Numbers of the votes that say that they were cast after this moment."""
    ahead = or_(votes.c.received_at > moment, votes.c.voted_at > moment)
    return list(database.fetch_scalars(select(votes.c.seq).where(ahead).order_by(votes.c.seq)))


def find_orphans(connection: Connection) -> list[str]:
    """Rows of an edited or damaged SQLite file that refer to missing ones; Postgres has none."""
    if connection.dialect.name != "sqlite":
        return []
    orphans = connection.exec_driver_sql("PRAGMA foreign_key_check").all()
    numbers = Counter((table, parent) for table, _, parent, _ in orphans)
    return [f"{n} {table} refer to missing {parent}." for (table, parent), n in numbers.items()]

"""Days of imported votes that are to be lived through again, oldest first. Knows the list; what a replay does is the sensors'."""

from collections.abc import Sequence

from sqlalchemy import select

from rlhf_pipeline.store.conversion import batches
from rlhf_pipeline.store.engine import MAX_ROWS, Database
from rlhf_pipeline.store.schema import replays


class Replays:
    """A day is pending from the import that asks for it until its replay is done. Every act may be repeated."""

    def __init__(self, database: Database):
        self._database = database

    def ask(self, days: Sequence[str]) -> None:
        """These days are to be replayed, those already done once more."""
        now = self._database.clock.now()
        with self._database.writing() as connection:
            for batch in batches(sorted(set(days)), MAX_ROWS):
                known = self._database.mine(replays), replays.c.day.in_(batch)
                stored = set(connection.execute(select(replays.c.day).where(*known)).scalars())
                connection.execute(replays.update().where(*known).values(state="pending", asked_at=now, done_at=None))
                new = [{"day": day, "state": "pending", "asked_at": now, "done_at": None} for day in batch if day not in stored]
                self._database.insert(connection, replays, new)

    def pending(self) -> list[str]:
        """Days still to be replayed, oldest first."""
        wanted = select(replays.c.day).where(self._database.mine(replays), replays.c.state == "pending").order_by(replays.c.day)
        with self._database.reading() as connection:
            return list(connection.execute(wanted).scalars())

    def done(self, day: str) -> None:
        """The replay of this day is over. Nothing happens to a day that was never asked for."""
        this = self._database.mine(replays), replays.c.day == day, replays.c.state == "pending"
        with self._database.writing() as connection:
            connection.execute(replays.update().where(*this).values(state="done", done_at=self._database.clock.now()))

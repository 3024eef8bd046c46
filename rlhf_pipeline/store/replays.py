"""The list of imported days to replay, oldest first."""

from collections.abc import Sequence

from sqlalchemy import and_, func, literal, or_, select

from rlhf_pipeline.store.conversion import batches
from rlhf_pipeline.store.engine import MAX_ROWS, Repository
from rlhf_pipeline.store.schema import replays, votes


class Replays(Repository):
    """A day is pending from the request of an import until its replay is done. Every act may be
    repeated.
    """

    def request(self, days: Sequence[str]) -> None:
        """Mark these days as pending, those already replayed too."""
        now = self._database.clock.now()
        with self._database.write_transaction() as connection:
            for batch in batches(sorted(set(days)), MAX_ROWS):
                pending = {"state": "pending", "asked_at": now, "done_at": None}
                rows = [{"day": day, **pending} for day in batch]
                self._database.upsert(connection, replays, rows, ("day",))

    def pending_days(self) -> list[str]:
        """Days still to be replayed, oldest first."""
        waiting = select(replays.c.day).where(replays.c.state == "pending")
        return list(self._database.fetch_scalars(waiting.order_by(replays.c.day)))

    def unrequested_days(self) -> list[str]:
        """Days with imported votes for which no replay was requested, oldest first; an earlier
        replay may lack newer votes.
        """
        request = select(literal(1)).where(
            replays.c.day == votes.c.day,
            or_(replays.c.state == "pending", replays.c.done_at >= votes.c.received_at),
        )
        imported = (votes.c.origin == "import", votes.c.voted_at.is_not(None))
        return sorted(
            self._database.fetch_scalars(
                select(votes.c.day).where(*imported, ~request.exists()).distinct()
            )
        )

    def first_waiting_seq(self, after_day: str, *, up_to_seq: int) -> int | None:
        """The oldest seq, not above `up_to_seq`, of a vote cast on a pending day after `after_day`;
        None if there is none.
        """
        of_day = and_(
            votes.c.day == replays.c.day,
            votes.c.seq <= up_to_seq,
            votes.c.voted_at.is_not(None),
        )
        waiting = (replays.c.state == "pending", replays.c.day > after_day)
        return self._database.fetch_scalar(
            select(func.min(votes.c.seq)).select_from(replays).join(votes, of_day).where(*waiting)
        )

    def mark_done(self, day: str, *, up_to_seq: int | None = None) -> bool:
        """End the replay of this day, unless imported votes above `up_to_seq` were cast on it
        since; returns whether it ended.

        Does nothing for a day that was never requested.
        """
        limit = up_to_seq if up_to_seq is not None else 2**62
        newer = (
            select(func.count())
            .select_from(votes)
            .where(
                votes.c.day == day,
                votes.c.origin == literal("import"),
                votes.c.voted_at.is_not(None),
                votes.c.seq > limit,
            )
        )
        this = (replays.c.day == day, replays.c.state == "pending")
        with self._database.write_transaction() as connection:
            if connection.execute(newer).scalar_one():
                return False
            connection.execute(
                replays.update()
                .where(*this)
                .values(state="done", done_at=self._database.clock.now())
            )
        return True

"""Offers comparisons to people, leases cards to annotators, and counts the remaining work.

A row of `slots` is one wanted judgement; a card holds it until it is judged, released, or its lease
ends. `card_queue` draws the next card.
"""

from collections.abc import Mapping, Sequence
from datetime import datetime, timedelta
from typing import Any

from sqlalchemy import Connection, and_, case, func, literal, or_, select

from rlhf_pipeline.errors import NotFound, UnknownComparison
from rlhf_pipeline.records import AnnotationRules, Assignment, Record, content_hash
from rlhf_pipeline.store.audit import audited_transaction
from rlhf_pipeline.store.card_queue import (
    MOST_COUNTED,
    RESERVED_SLOTS_FROM,
    AnnotatorQueue,
    Reason,
    assignment_of,
    is_free,
    is_unfinished,
)
from rlhf_pipeline.store.conversion import batches
from rlhf_pipeline.store.engine import MAX_ROWS, Database
from rlhf_pipeline.store.schema import (
    assignments,
    comparisons,
    practised_comparisons,
    slots,
    votes,
)


class RemainingWork(Record):
    """Comparisons offered to people, and their slots: all, done and leased."""

    n_comparisons: int
    n_slots: int
    n_done: int
    n_leased: int

    @property
    def n_open(self) -> int:
        return self.n_slots - self.n_done - self.n_leased


class WaitingWork(Record):
    """Judgements that nobody holds or has made, and when the oldest of their comparisons was
    published.
    """

    n_open: int
    oldest_at: datetime | None


class RemainingCards(Record):
    """Roughly how many judgements one annotator could still be dealt, at most
    card_queue.MOST_COUNTED, and the reason if there are none.

    Every judgement takes one from `n`, and a leased card none, whatever its kind: n = work that
    wants a slot - cards without a slot that were judged today. At 00:00 UTC the latter are
    forgotten, which reveals how many hidden cards the day had, as the figures of earlier days do.
    `n` is never less than the number of held cards.
    """

    n: int
    reason_empty: Reason | None


class Assignments:
    """Leases end by the clock alone: nothing needs to be cleaned up after an annotator who left."""

    def __init__(self, database: Database):
        self._database = database

    def offer(
        self,
        comparison_ids: Sequence[str],
        *,
        overlap: int,
        priority: int = 0,
        actor: str = "pipeline",
    ) -> int:
        """Ask people for `overlap` judgements of each comparison; returns the number of new slots.
        Safe to repeat.

        Lower priorities are dealt first, equal ones in the order of the ids. More overlap adds
        slots, less removes none. Raises UnknownComparison.
        """
        wanted = sorted(set(comparison_ids))
        n_new = 0
        for ids in self._database.with_backoff(batches(wanted, max(1, MAX_ROWS // overlap))):
            with audited_transaction(self._database) as (connection, ledger):
                self._require_known(connection, ids)
                there = select(slots.c.comparison_id, slots.c.slot_no).where(
                    slots.c.comparison_id.in_(ids)
                )
                taken = {(row.comparison_id, row.slot_no) for row in connection.execute(there)}
                wanted_here = [
                    (c, no) for c in ids for no in range(1, overlap + 1) if (c, no) not in taken
                ]
                new = [
                    _build_slot(c, no, priority=priority, annotator_id=None)
                    for c, no in wanted_here
                ]
                self._insert_slots(connection, new)
                if new:
                    ledger.append(
                        actor=actor,
                        action="comparisons.offer",
                        object_id=f"{len(new)} slots",
                        digest=content_hash(new),
                    )
            n_new += len(new)
        return n_new

    def ask(
        self, annotator_id: str, comparison_ids: Sequence[str], *, priority: int = 0, actor: str
    ) -> int:
        """Ask one annotator for a judgement of each comparison, in addition to open work; returns
        the number of new slots.

        Skips comparisons that they judged, practised on, hold or were asked for, and flagged ones,
        which nobody is dealt. These cards are dealt before anything else; skipped ones are open to
        anybody. A comparison that they wrote gets a slot and is never dealt to them: leaving it
        out of the number would reveal who wrote which text. Raises UnknownComparison.
        """
        n_new = 0
        for ids in self._database.with_backoff(batches(sorted(set(comparison_ids)), MAX_ROWS)):
            with audited_transaction(self._database) as (connection, ledger):
                self._require_known(connection, ids)
                taken = self._find_unavailable_ids(connection, annotator_id, ids)
                last = select(slots.c.comparison_id, func.max(slots.c.slot_no)).where(
                    slots.c.comparison_id.in_(ids)
                )
                numbers = {
                    row[0]: row[1]
                    for row in connection.execute(last.group_by(slots.c.comparison_id))
                }
                asked: dict[str, Any] = {"priority": priority, "annotator_id": annotator_id}
                new = [
                    _build_slot(c, max(RESERVED_SLOTS_FROM, numbers.get(c, 0)) + 1, **asked)
                    for c in ids
                    if c not in taken
                ]
                self._insert_slots(connection, new)
                if new:
                    what = f"{len(new)} slots of {annotator_id}"
                    ledger.append(
                        actor=actor,
                        action="comparisons.offer",
                        object_id=what,
                        digest=content_hash(new),
                    )
            n_new += len(new)
        return n_new

    def _find_unavailable_ids(
        self, connection: Connection, annotator_id: str, ids: Sequence[str]
    ) -> set[str]:
        now = self._database.clock.now()
        gone = or_(
            assignments.c.state == "released",
            and_(assignments.c.state == "leased", assignments.c.leased_until <= now),
        )

        def select_ids(table: Any, *conditions: Any) -> set[str]:
            wanted = select(table.c.comparison_id).where(
                table.c.comparison_id.in_(ids), *conditions
            )
            return set(connection.execute(wanted).scalars())

        met = select_ids(
            assignments, assignments.c.annotator_id == annotator_id, ~gone
        ) | select_ids(votes, votes.c.annotator_id == annotator_id)
        met |= select_ids(
            practised_comparisons, practised_comparisons.c.annotator_id == annotator_id
        )
        asked = select_ids(slots, slots.c.annotator_id == annotator_id, slots.c.state != "done")
        # They judged these by writing them, which must not be revealed.
        written = select_ids(comparisons, comparisons.c.written_by == annotator_id)
        return (met - written) | asked | select_ids(comparisons, comparisons.c.flag.is_not(None))

    def _require_known(self, connection: Connection, ids: Sequence[str]) -> None:
        known = select(comparisons.c.comparison_id).where(comparisons.c.comparison_id.in_(ids))
        unknown = set(ids) - set(connection.execute(known).scalars())
        if unknown:
            raise UnknownComparison(
                f"Comparison {min(unknown)!r} was never published here. Publish it first, or "
                "correct the id."
            )

    def withdraw(self, comparison_ids: Sequence[str], *, actor: str) -> int:
        """Delete the open slots of these comparisons; leased cards and judgements stay. Returns the
        number deleted.
        """
        n = 0
        for ids in self._database.with_backoff(batches(sorted(set(comparison_ids)), MAX_ROWS)):
            with audited_transaction(self._database) as (connection, ledger):
                free = and_(
                    slots.c.comparison_id.in_(ids),
                    is_free(self._database.clock.now()),
                )
                gone = connection.execute(slots.delete().where(free)).rowcount
                if gone:
                    ledger.append(
                        actor=actor,
                        action="comparisons.withdraw",
                        object_id=f"{gone} slots",
                        digest=content_hash(ids),
                    )
            n += gone
        return n

    def deal(self, annotator_id: str, n: int, rules: AnnotationRules) -> list[Assignment]:
        """Up to `n` cards for this annotator in the order dealt, held ones first.

        Fewer if no more work is left for this annotator or the day's cap is reached. Each is leased
        for `rules.lease_minutes`; a released or expired card is dealt again before others and with
        its old sides.
        """
        with self._database.write_transaction() as connection:
            queue = AnnotatorQueue(
                self._database, connection, annotator_id, rules, self._database.clock.now()
            )
            held = queue.held_cards()[:n]
            return (
                sorted([*held, *queue.draw(n - len(held))], key=lambda card: card.n)
                if len(held) < n
                else held
            )

    def get(self, assignment_id: str) -> Assignment:
        """Raises NotFound."""
        wanted = select(assignments).where(assignments.c.assignment_id == assignment_id)
        for row in self._database.fetch_mappings(wanted):
            return assignment_of(row)
        raise NotFound(f"There is no assignment {assignment_id!r}. Lease one first.")

    def holds_slot(self, assignment_id: str) -> bool:
        """Whether the slot that a card was dealt for is still, or again, its own. True for cards
        without a slot.
        """
        same = and_(
            slots.c.comparison_id == assignments.c.comparison_id,
            slots.c.slot_no == assignments.c.slot_no,
        )
        lost = select(literal(1)).where(
            same,
            assignments.c.assignment_id == assignment_id,
            func.coalesce(slots.c.assignment_id, "") != assignment_id,
        )
        return self._database.fetch_first(lost) is None

    def release(self, assignment_id: str, annotator_id: str) -> None:
        """Return a card before its lease ends. Does nothing for a judged one."""
        with self._database.write_transaction() as connection:
            own = and_(
                assignments.c.assignment_id == assignment_id,
                assignments.c.annotator_id == annotator_id,
            )
            card = connection.execute(
                select(assignments.c.state, assignments.c.comparison_id).where(own)
            ).first()
            if card is None:
                raise NotFound(
                    f"There is no assignment {assignment_id!r} of yours. Nothing was released."
                )
            if card.state != "leased":
                return
            now = self._database.clock.now()
            connection.execute(
                assignments.update().where(own).values(state="released", leased_until=now)
            )
            holding = and_(
                slots.c.comparison_id == card.comparison_id,
                slots.c.assignment_id == assignment_id,
                slots.c.state == "leased",
            )
            connection.execute(
                slots.update()
                .where(holding)
                .values(state="open", assignment_id=None, leased_until=None)
            )

    def extend(self, annotator_id: str, minutes: float) -> int:
        """Prolong the annotator's leases while they read; returns the number of cards."""
        now = self._database.clock.now()
        until = now + timedelta(minutes=minutes)
        with self._database.write_transaction() as connection:
            held = and_(
                assignments.c.annotator_id == annotator_id,
                assignments.c.state == "leased",
                assignments.c.leased_until > now,
            )
            cards = connection.execute(
                select(assignments.c.assignment_id, assignments.c.comparison_id).where(held)
            ).all()
            for some in batches(cards, MAX_ROWS):
                ids = [card.assignment_id for card in some]
                connection.execute(
                    assignments.update()
                    .where(assignments.c.assignment_id.in_(ids))
                    .values(leased_until=until)
                )
                connection.execute(
                    slots.update()
                    .where(
                        slots.c.comparison_id.in_([card.comparison_id for card in some]),
                        slots.c.assignment_id.in_(ids),
                        slots.c.state == "leased",
                    )
                    .values(leased_until=until)
                )
        return len(cards)

    def remaining_for(self, annotator_id: str, rules: AnnotationRules) -> RemainingCards:
        """The cards that one annotator could be dealt now, held ones included."""
        now = self._database.clock.now()
        with self._database.read_transaction() as connection:
            queue = AnnotatorQueue(self._database, connection, annotator_id, rules, now)
            (n_held, n_with_slot), n_allowed = queue.count_held(), queue.remaining_quota()
            if n_held + n_allowed == 0:
                return RemainingCards(n=0, reason_empty="cap_reached")
            n_hidden = queue.count_without_slot()
            # enough that `n` stays exact up to MOST_COUNTED
            n_open = queue.count_open(MOST_COUNTED + n_hidden)
            least = max(n_held, min(n_open, 1))
            n = min(
                max(least, min(n_with_slot + n_open - n_hidden, MOST_COUNTED)), n_held + n_allowed
            )
            return RemainingCards(n=n, reason_empty=None if least else queue.find_empty_reason())

    def count_slots(self, comparison_ids: Sequence[str]) -> dict[str, tuple[int, int]]:
        """comparison_id -> number of judgements wanted, and made; comparisons that were never
        offered are left out.
        """
        n_done = func.sum(case((slots.c.state == "done", 1), else_=0))
        wanted = select(slots.c.comparison_id, func.count(), n_done).group_by(slots.c.comparison_id)
        rows = self._database.fetch_among(wanted, slots.c.comparison_id, comparison_ids)
        return {row[0]: (row[1], row[2]) for row in rows}

    def remaining_work(self) -> RemainingWork:
        """Over the whole project."""
        now = self._database.clock.now()
        of_state = select(slots.c.state, func.count()).group_by(slots.c.state)
        running = select(func.count()).where(
            is_unfinished(),
            slots.c.state == "leased",
            slots.c.leased_until > now,
        )
        n = select(func.count(func.distinct(slots.c.comparison_id)))
        with self._database.read_transaction() as connection:
            counted = {row[0]: row[1] for row in connection.execute(of_state)}
            return RemainingWork(
                n_comparisons=connection.execute(n).scalar_one(),
                n_slots=sum(counted.values()),
                n_done=counted.get("done", 0),
                n_leased=connection.execute(running).scalar_one(),
            )

    def _insert_slots(self, connection: Connection, new: Sequence[Mapping[str, Any]]) -> None:
        now = self._database.clock.now()
        self._database.insert(connection, slots, [{**slot, "offered_at": now} for slot in new])

    def waiting_work(self) -> WaitingWork:
        """Over the whole project. It reads open slots only, so that a sensor may ask often."""
        wanted: Any = select(func.count(), func.min(slots.c.offered_at)).where(
            is_unfinished(), is_free(self._database.clock.now())
        )
        n_open, oldest_at = self._database.fetch_all(wanted)[0]
        return WaitingWork(n_open=n_open, oldest_at=oldest_at)

    def list_for_annotator(self, annotator_id: str, *, limit: int = 50) -> list[Assignment]:
        """The newest cards of one annotator."""
        wanted = (
            select(assignments)
            .where(assignments.c.annotator_id == annotator_id)
            .order_by(assignments.c.n.desc())
            .limit(limit)
        )
        return [assignment_of(row) for row in self._database.fetch_mappings(wanted)]


def _build_slot(
    comparison_id: str, slot_no: int, *, priority: int, annotator_id: str | None
) -> dict[str, Any]:
    free = {"state": "open", "assignment_id": None, "leased_until": None}
    return {
        "comparison_id": comparison_id,
        "slot_no": slot_no,
        "priority": priority,
        "annotator_id": annotator_id,
        **free,
    }

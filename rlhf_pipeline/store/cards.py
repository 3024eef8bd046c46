"""Offers comparisons to annotators, deals cards of them, and counts the work that is left.

An offer wants a number of judgements of one comparison, from anybody or from one annotator. A card
is one comparison dealt to one annotator. It takes a place in its offer until it is released or its
lease ends, and keeps the place if a person judges it. `card_draw` draws the next card.
"""

from collections.abc import Mapping, Sequence
from datetime import datetime, timedelta
from typing import Any, Literal

from pydantic import Field, computed_field
from sqlalchemy import (
    Connection,
    Select,
    Update,
    and_,
    bindparam,
    case,
    func,
    literal,
    or_,
    select,
)

from rlhf_pipeline.core.errors import NotFound, UnknownComparison
from rlhf_pipeline.core.records import (
    AnnotationRules,
    AnnotatorKind,
    Card,
    Choice,
    Record,
    content_hash,
)
from rlhf_pipeline.store.audit import audited_transaction
from rlhf_pipeline.store.card_draw import (
    ANYBODY,
    HAS_VOTED,
    IS_UNFINISHED,
    CardDraw,
    CardRow,
    count_held,
    has_free_place,
    is_held,
    is_met,
    is_own,
    undealt_kind,
)
from rlhf_pipeline.store.conversion import batches
from rlhf_pipeline.store.engine import MAX_ROWS, Repository
from rlhf_pipeline.store.schema import cards, comparisons, offers, votes

MOST_COUNTED = 200  # comparisons that are counted for one annotator

Reason = Literal["nothing_open", "cap_reached"]


class RemainingWork(Record):
    """Judgements that all offers want, those made and those in work; `oldest_at` is when the oldest
    unfinished offer was made.
    """

    n_comparisons: int
    n_wanted: int
    n_done: int
    n_leased: int
    oldest_at: datetime | None = Field(default=None, exclude=True)

    @computed_field  # type: ignore[prop-decorator]
    @property
    def n_open(self) -> int:
        return self.n_wanted - self.n_done - self.n_leased


class RemainingCards(Record):
    """Roughly how many judgements one annotator could still be dealt, at most MOST_COUNTED, and the
    reason if there are none.

    Every judgement takes one from `n`, and a leased card none, whatever its kind: n = open and held
    places in offers - cards without a place that were judged today. At 00:00 UTC the latter are
    forgotten, which reveals how many hidden cards the day had, as the figures of earlier days do.
    `n` is never less than the number of held cards.
    """

    n: int
    reason_empty: Reason | None


class Cards(Repository):
    """Leases end by the clock alone: nothing needs to be cleaned up after an annotator who left."""

    def offer(
        self,
        comparison_ids: Sequence[str],
        *,
        overlap: int,
        priority: int = 0,
        actor: str = "pipeline",
    ) -> int:
        """Ask anybody for `overlap` judgements of each comparison; returns how many are newly
        wanted. Safe to repeat.

        Lower priorities are dealt first, equal ones in the order of the ids. More overlap raises an
        offer and gives it this priority, less changes nothing. Raises UnknownComparison.
        """
        return self._offer(comparison_ids, ANYBODY, overlap, priority, actor)

    def ask(
        self, annotator_id: str, comparison_ids: Sequence[str], *, priority: int = 0, actor: str
    ) -> int:
        """Ask one annotator for a judgement of each comparison, in addition to open work; returns
        how many are newly wanted.

        Skips comparisons that they judged, hold or were asked for, and flagged ones,
        which nobody is dealt. These cards are dealt before anything else; skipped ones are open to
        anybody. A comparison that they wrote gets an offer and is never dealt to them: leaving it
        out of the number would reveal who wrote which text. Raises UnknownComparison.
        """
        return self._offer(comparison_ids, annotator_id, 1, priority, actor)

    def withdraw(self, comparison_ids: Sequence[str], *, actor: str) -> int:
        """Withdraw the free places of these comparisons; leased cards and judgements stay. Returns
        the number withdrawn.
        """
        n_all = 0
        for ids in self._database.with_backoff(batches(sorted(set(comparison_ids)), MAX_ROWS)):
            of_ids = offers.c.comparison_id.in_(ids)
            total = select(func.coalesce(func.sum(offers.c.n_wanted), 0)).where(of_ids)
            update = offers.update().values(n_wanted=offers.c.n_done + count_held())
            with audited_transaction(self._database) as (connection, ledger):
                n = connection.execute(total).scalar_one()
                parameters = self._parameters(ANYBODY)
                connection.execute(update.where(of_ids, has_free_place()), parameters)
                n -= connection.execute(total).scalar_one()
                connection.execute(offers.delete().where(of_ids, offers.c.n_wanted == 0))
                if n:
                    ledger.append(
                        actor=actor,
                        action="comparisons.withdraw",
                        object_id=f"{n} judgements",
                        digest=content_hash(ids),
                    )
            n_all += n
        return n_all

    def deal(self, annotator_id: str, n: int, rules: AnnotationRules) -> list[Card]:
        """Up to `n` cards for this annotator in the order dealt, held ones first.

        Fewer if no more work is left for this annotator or the day's cap is reached. Each is leased
        for `rules.lease_minutes`; a released or expired card is dealt again before others and with
        its old sides.
        """
        query = (
            select(cards)
            .where(is_own(), is_held(), cards.c.kind != bindparam("undealt"))
            .order_by(cards.c.n)
        )
        with self._database.write_transaction() as connection:
            parameters = {**self._parameters(annotator_id), "undealt": undealt_kind(rules)}
            rows = connection.execute(query, parameters).mappings().all()
            if len(rows) < n:
                draw = self._begin_draw(connection, annotator_id, rules)
                self._write_cards(connection, draw.draw(n - len(rows)))
                rows = connection.execute(query, parameters).mappings().all()
        return [Card.model_validate(dict(row)) for row in rows[:n]]

    def get(self, card_id: str) -> Card:
        """Raises NotFound."""
        for row in self._database.fetch_mappings(select(cards).where(cards.c.card_id == card_id)):
            return Card.model_validate(dict(row))
        raise NotFound(f"There is no card {card_id!r}. Lease one first.")

    def release(self, card_id: str, annotator_id: str) -> None:
        """Return a card before its lease ends. Does nothing for a judged one."""
        now = self._database.clock.now()
        own = and_(cards.c.card_id == card_id, cards.c.annotator_id == annotator_id)
        with self._database.write_transaction() as connection:
            if connection.execute(select(literal(1)).where(own)).first() is None:
                raise NotFound(f"There is no card {card_id!r} of yours. Nothing was released.")
            connection.execute(
                cards.update()
                .where(own, cards.c.state == "leased")
                .values(state="released", leased_until=now)
            )

    def extend(self, annotator_id: str, minutes: float) -> int:
        """Prolong the annotator's leases while they read; returns the number of cards."""
        until = self._database.clock.now() + timedelta(minutes=minutes)
        longer = cards.update().where(is_own(), is_held()).values(leased_until=until)
        with self._database.write_transaction() as connection:
            return connection.execute(longer, self._parameters(annotator_id)).rowcount

    def has_voted(self, annotator_id: str) -> bool:
        with self._database.read_transaction() as connection:
            return connection.execute(HAS_VOTED, self._parameters(annotator_id)).first() is not None

    def remaining_for(self, annotator_id: str, rules: AnnotationRules) -> RemainingCards:
        """The cards that one annotator could be dealt now, held ones included."""
        with self._database.read_transaction() as connection:
            draw = self._begin_draw(connection, annotator_id, rules)
            day = draw.count_day()
            n_allowed = day.n_held + draw.remaining_quota(day.n_used)
            # enough that `n` stays exact up to MOST_COUNTED
            n_open = draw.count_open(MOST_COUNTED + day.n_hidden)
        n = min(day.n_places + n_open - day.n_hidden, MOST_COUNTED)
        n = min(max(n, day.n_held, min(n_open, 1)), n_allowed)
        reason: Reason = "nothing_open" if n_allowed else "cap_reached"
        return RemainingCards(n=n, reason_empty=None if n else reason)

    def count_wanted(self, comparison_ids: Sequence[str]) -> dict[str, tuple[int, int]]:
        """comparison_id -> number of judgements wanted, and made; comparisons that are not offered
        are left out.
        """
        n_wanted, n_done = func.sum(offers.c.n_wanted), func.sum(offers.c.n_done)
        counts = select(offers.c.comparison_id, n_wanted, n_done).group_by(offers.c.comparison_id)
        rows = self._database.fetch_among(counts, offers.c.comparison_id, comparison_ids)
        return {row[0]: (int(row[1]), int(row[2])) for row in rows}

    def remaining_work(self) -> RemainingWork:
        """Over the whole project."""
        waiting_since = select(func.min(offers.c.offered_at)).where(IS_UNFINISHED)
        totals = select(
            func.count(func.distinct(offers.c.comparison_id)).label("n_comparisons"),
            func.coalesce(func.sum(offers.c.n_wanted), 0).label("n_wanted"),
            func.coalesce(func.sum(offers.c.n_done), 0).label("n_done"),
            _COUNT_IN_WORK.scalar_subquery().label("n_leased"),
            waiting_since.scalar_subquery().label("oldest_at"),
        )
        with self._database.read_transaction() as connection:
            row = connection.execute(totals, self._parameters(ANYBODY)).one()
        return RemainingWork.model_validate(row._asdict())

    def _offer(
        self,
        comparison_ids: Sequence[str],
        offered_to: str,
        overlap: int,
        priority: int,
        actor: str,
    ) -> int:
        """Write the offers to anybody, or to one annotator, who judges each once."""
        is_named = offered_to != ANYBODY
        n_all = 0
        for ids in self._database.with_backoff(batches(sorted(set(comparison_ids)), MAX_ROWS)):
            query = _SELECT_ASKABLE if is_named else _SELECT_OFFERS
            parameters = {"ids": ids, "offered_to": offered_to, **self._parameters(offered_to)}
            with audited_transaction(self._database) as (connection, ledger):
                self._require_published(connection, ids)
                new, n = [], 0
                for comparison_id, reserved_for, n_wanted, n_done in connection.execute(
                    query, parameters
                ):
                    target = n_done + 1 if is_named else overlap
                    if n_wanted < target or reserved_for != offered_to:
                        n += target - n_wanted
                        new.append(
                            {
                                "comparison_id": comparison_id,
                                "offered_to": offered_to,
                                "reserved_for": offered_to,
                                "priority": priority,
                                "n_wanted": target,
                                "n_done": n_done,
                                "offered_at": parameters["now"],
                            }
                        )
                self._database.upsert(connection, offers, new, ("comparison_id", "offered_to"))
                if new:
                    ledger.append(
                        actor=actor,
                        action="comparisons.offer",
                        object_id=f"{n} judgements of {offered_to or 'anybody'}",
                        digest=content_hash(new),
                    )
            n_all += n
        return n_all

    def _require_published(self, connection: Connection, ids: Sequence[str]) -> None:
        published = select(comparisons.c.comparison_id).where(comparisons.c.comparison_id.in_(ids))
        unknown = set(ids) - set(connection.execute(published).scalars())
        if unknown:
            raise UnknownComparison(
                f"Comparison {min(unknown)!r} was never published here. Publish it first, or "
                "correct the id."
            )

    def _begin_draw(
        self, connection: Connection, annotator_id: str, rules: AnnotationRules
    ) -> CardDraw:
        return CardDraw(connection, annotator_id, rules, self._database.clock.now())

    def _write_cards(self, connection: Connection, rows: Sequence[CardRow]) -> None:
        """Insert cards, or lease again those that exist, which keep their ids and sides."""
        turn = ("comparison_id", "annotator_id", "pass_no")
        self._database.upsert(
            connection, cards, rows, key=turn, unchanged=("card_id", "is_swapped")
        )

    def _parameters(self, annotator_id: str) -> dict[str, Any]:
        return {"annotator": annotator_id, "now": self._database.clock.now()}


_SELECT_OFFERS = (
    select(
        comparisons.c.comparison_id,
        offers.c.reserved_for,
        func.coalesce(offers.c.n_wanted, 0),
        func.coalesce(offers.c.n_done, 0),
    )
    .outerjoin(
        offers,
        and_(
            offers.c.comparison_id == comparisons.c.comparison_id,
            offers.c.offered_to == bindparam("offered_to"),
        ),
    )
    .where(comparisons.c.comparison_id.in_(bindparam("ids", expanding=True)))
    .order_by(comparisons.c.comparison_id)
)
_HAS_VOTE = (
    select(literal(1))
    .where(votes.c.comparison_id == comparisons.c.comparison_id, is_own(votes))
    .exists()
)
_SELECT_ASKABLE = _SELECT_OFFERS.where(
    comparisons.c.flag.is_(None),
    or_(
        comparisons.c.written_by == bindparam("annotator"),
        and_(~_HAS_VOTE, ~is_met(comparisons.c.comparison_id)),
    ),
)


def _count_in_work() -> Select[Any]:
    """Number of held cards that their offers still want: votes from files may take the place of a
    held card, whose own vote is then an additional one.
    """
    key = (offers.c.comparison_id, offers.c.offered_to, offers.c.n_wanted, offers.c.n_done)
    per_offer = (
        select(func.count().label("n"), (offers.c.n_wanted - offers.c.n_done).label("most"))
        .join(
            cards,
            and_(
                cards.c.comparison_id == offers.c.comparison_id,
                cards.c.offered_to == offers.c.offered_to,
            ),
        )
        .where(is_held())
        .group_by(*key)
        .subquery()
    )
    in_work = case((per_offer.c.n < per_offer.c.most, per_offer.c.n), else_=per_offer.c.most)
    return select(func.coalesce(func.sum(in_work), 0))


_COUNT_IN_WORK = _count_in_work()


def fill_offers(connection: Connection, rows: Sequence[Mapping[str, Any]]) -> None:
    """Count votes from files, each the first judgement of its annotator, in an offer of their
    comparisons: a file names no cards, and without this its comparisons would wait for judgements
    that are there.
    """
    ids = sorted({row["comparison_id"] for row in rows if row["origin"] == "import"})
    offered = {*connection.execute(_SELECT_OFFERED, {"values": ids}).scalars()} if ids else ()
    parameters = [
        {"comparison": row["comparison_id"], "annotator": row["annotator_id"]}
        for row in rows
        if row["origin"] == "import"
        and row["comparison_id"] in offered
        and row["annotator_kind"] != AnnotatorKind.MACHINE
        and row["choice"] != Choice.SKIP
    ]
    if parameters:
        connection.execute(_FILL, parameters)


def _fill_one_offer() -> Update:
    """Of the unfinished offers to the annotator and to anybody, the former: its name sorts last."""
    open_offers = offers.alias("open_offers")
    waiting = select(func.max(open_offers.c.offered_to)).where(
        open_offers.c.comparison_id == bindparam("comparison"),
        open_offers.c.offered_to.in_([ANYBODY, bindparam("annotator")]),
        open_offers.c.n_done < open_offers.c.n_wanted,
    )
    return (
        offers.update()
        .where(
            offers.c.comparison_id == bindparam("comparison"),
            offers.c.offered_to == waiting.scalar_subquery(),
        )
        .values(n_done=offers.c.n_done + 1)
    )


_FILL = _fill_one_offer()
_SELECT_OFFERED = select(offers.c.comparison_id).where(
    offers.c.comparison_id.in_(bindparam("values", expanding=True))
)

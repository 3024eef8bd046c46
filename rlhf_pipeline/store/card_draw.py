"""Draws one annotator's next cards: which comparison, and on which side each completion is shown.

Every draw follows from the rules' seed, so that an order can be reproduced later.
"""

import hashlib
import math
from collections.abc import Container, Iterator
from dataclasses import dataclass
from datetime import datetime, timedelta
from functools import cached_property, lru_cache
from typing import Any

from sqlalchemy import (
    ColumnElement,
    Connection,
    Select,
    and_,
    bindparam,
    case,
    func,
    literal,
    literal_column,
    or_,
    select,
    union,
)

from rlhf_pipeline.core.records import GATE_SOURCE, AnnotationRules, CardKind, content_id
from rlhf_pipeline.store.schema import cards, comparisons, gate_sessions, offers, votes

ANYBODY = ""  # `offered_to` and `reserved_for` of an offer that names no annotator
# Of offers of the gate: above all others, so that they are found by the index of offers.
GATE_PRIORITY = 2**31 - 1
GATE_SHARE = 0.25  # of an annotator's cards; more where nothing else is open
EXPERIMENT_PRIORITY = GATE_PRIORITY - 1  # of offers of an experiment on served versions
EXPERIMENT_SHARE = 0.1  # as GATE_SHARE
WINDOW = 60  # comparisons at the head of the queue among which each annotator's own order is drawn
# oldest cards among which repeats are drawn, so that an annotator's first weeks do not dominate
REPEATS_FROM = 200
RATED_FROM = 500  # newest comparisons among which ratings are drawn
# newest cards of an annotator that are searched for released or expired ones
RETURNED_CARDS_WINDOW = 200
CardRow = dict[str, Any]  # one row of table `cards`


@dataclass
class CardDraw:
    """The draws for one annotator within one transaction."""

    connection: Connection
    annotator_id: str
    rules: AnnotationRules
    now: datetime

    def draw(self, n: int) -> list[CardRow]:
        """Up to `n` leased cards to write: released or expired ones, then new ones.

        A card returns in its old place and with its old sides, whatever its kind: an annotator who
        releases cards and leases again sees the same ones, so a missing card reveals nothing. A
        normal card that others took meanwhile does not return.
        """
        n = min(n, self.remaining_quota(self.count_day().n_used))
        if n == 0:
            return []
        last = self._fetch_scalar(_SELECT_LAST_PLACE) or 0
        since = last - RETURNED_CARDS_WINDOW
        parameters = self._parameters(since=since, most=n, undealt=undealt_kind(self.rules))
        returned = self.connection.execute(_SELECT_RETURNED, parameters).mappings()
        drawn: dict[str, CardRow] = {row["comparison_id"]: dict(row) for row in returned}
        normal = self._draw_normal_cards(n, drawn)
        gate = self._draw_reserved_cards(GATE_PRIORITY, drawn)
        served = self._draw_reserved_cards(EXPERIMENT_PRIORITY, drawn)
        while len(drawn) < n:
            last += 1
            is_gate_place = self._is_drawn_place(last, GATE_SHARE, "gate")
            is_served_place = self._is_drawn_place(last, EXPERIMENT_SHARE, "served")
            card = (
                self._draw_hidden_card(last, drawn)
                or (next(gate, None) if is_gate_place else None)
                or (next(served, None) if is_served_place else None)
                or next(normal, None)
                or next(gate, None)
                or next(served, None)
            )
            if card is None:
                break
            drawn[card["comparison_id"]] = {**card, "n": last}
        until = self.now + timedelta(minutes=self.rules.lease_minutes)
        lease = {"state": "leased", "leased_at": self.now, "leased_until": until}
        return [{**card, **lease, "settled_at": None} for card in drawn.values()]

    def count_day(self) -> Any:
        """Of the annotator's cards that are held or were judged today: `n_held`, those of them with
        a place in an offer `n_places`, judged without one `n_hidden`, and `n_used` of the day's
        cap.
        """
        midnight = self.now.replace(hour=0, minute=0, second=0, microsecond=0)
        return self.connection.execute(_COUNT_DAY, self._parameters(midnight=midnight)).one()

    def remaining_quota(self, n_used: int) -> int:
        """Number of cards that the day's cap leaves, held ones counted."""
        most = self.rules.max_votes_per_day
        return 2**31 if most is None else max(0, most - n_used)

    def count_open(self, most: int) -> int:
        """Number of comparisons that this annotator has not met, with a free place in an offer;
        exact up to `most`. Those of the gate count while the annotator may judge more of them.
        """
        before = GATE_PRIORITY + 1 if self._gate_quota else GATE_PRIORITY
        return int(self._fetch_scalar(_COUNT_OPEN, most=most, before=before))

    def _draw_normal_cards(self, n: int, drawn: Container[str]) -> Iterator[CardRow]:
        """Open comparisons that were not `drawn`, from the head of the queue, in an order of the
        annotator's own; those reserved for the annotator first.
        """
        for reserved_for in (self.annotator_id, ANYBODY):
            parameters = self._parameters(
                reserved_for=reserved_for,
                most=WINDOW + n,
                first=-GATE_PRIORITY,
                before=EXPERIMENT_PRIORITY,
            )
            rows = self.connection.execute(_SELECT_OFFERS, parameters).all()
            for c, offered_to, _ in sorted(
                rows, key=lambda row: (row.priority, self._draw_number("order", row.comparison_id))
            ):
                if c not in drawn:
                    yield self._build_card(c, CardKind.NORMAL, offered_to=offered_to)

    def _draw_reserved_cards(self, priority: int, drawn: Container[str]) -> Iterator[CardRow]:
        """Comparisons of this priority that were not `drawn`, of the gate as many as the annotator
        may judge, in an order of their own.
        """
        n_left = self._gate_quota if priority == GATE_PRIORITY else WINDOW
        if n_left == 0:
            return
        window = {"first": priority, "before": priority + 1}
        parameters = self._parameters(reserved_for=ANYBODY, most=WINDOW, **window)
        rows = self.connection.execute(_SELECT_OFFERS, parameters).all()
        for c, offered_to, _ in sorted(
            rows, key=lambda row: self._draw_number("order", row.comparison_id)
        ):
            if c not in drawn and n_left > 0:
                n_left -= 1
                yield self._build_card(c, CardKind.NORMAL, offered_to=offered_to)

    @cached_property
    def _gate_quota(self) -> int:
        """How many more cards of the running session of the gate the annotator may judge: a share
        of what it asks, and one more for each day that it waits, so that nobody's absence stops it.
        """
        session = self.connection.execute(_SELECT_SESSION).one_or_none()
        if session is None:
            return 0
        n_own = self._fetch_scalar(_COUNT_GATE_CARDS, opened_at=session.opened_at)
        n_most = math.ceil(session.most_share * session.n_wanted - 1e-9)
        n_left: int = n_most + (self.now - session.asked_at).days - n_own
        return max(0, n_left)

    def _draw_hidden_card(self, place: int, drawn: Container[str]) -> CardRow | None:
        """A repeat, a gold or a rating card, if this place of the annotator's sequence is one and
        a comparison is available.

        A repeat is a comparison that the annotator judged once, at least `repeat_after` votes ago,
        with sides swapped. A gold card takes a place in an offer of its comparison if there is
        one: else that work would vanish for this annotator without a vote.
        """
        if self._is_drawn_place(place, self.rules.repeat_share, "repeat"):
            for c, is_swapped in self._repeatable_cards:
                if c not in drawn:
                    card = self._build_card(c, CardKind.REPEAT, pass_no=2)
                    return {**card, "is_swapped": not is_swapped}
        if self._is_drawn_place(place, self.rules.gold_share, "gold"):
            for c, free_place in self._gold_places.items():
                if c not in drawn:
                    return self._build_card(c, CardKind.GOLD, offered_to=free_place)
        if self._is_drawn_place(place, self.rules.rating_share, "rating"):
            for c in self._ratable_comparisons:
                if c not in drawn:
                    return self._build_card(c, CardKind.RATING, pass_no=0)
        return None

    def _is_drawn_place(self, place: int, share: float, kind: str) -> bool:
        """One place of every 1/share is drawn: the share holds over any stretch, and the place is
        unpredictable.
        """
        if share == 0:
            return False
        size = round(1 / share)
        block, offset = divmod(place - 1, size)
        return offset == self._draw_number(kind, block) % size

    @cached_property
    def _repeatable_cards(self) -> list[tuple[str, bool]]:
        """(comparison, sides of its first card) of the oldest repeatable cards, in the order
        drawn.
        """
        before = self._fetch_scalar(_SELECT_SETTLED_AT, skipped=self.rules.repeat_after - 1)
        if before is None:
            return []
        parameters = self._parameters(before=before, most=REPEATS_FROM)
        rows = [tuple(row) for row in self.connection.execute(_SELECT_REPEATABLE, parameters)]
        return sorted(rows, key=lambda row: self._draw_number("repeats", row[0]))

    @cached_property
    def _gold_places(self) -> dict[str, str | None]:
        """Comparisons with a known answer that this annotator has not met, each with an offer of
        it that has a free place, in the order drawn.
        """
        rows = self.connection.execute(_SELECT_GOLD, self._parameters(most=WINDOW)).all()
        return dict(sorted(map(tuple, rows), key=lambda row: self._draw_number("gold", row[0])))

    @cached_property
    def _ratable_comparisons(self) -> list[str]:
        """Comparisons whose votes this annotator is not needed for, then open ones, each in the
        order drawn; none that the annotator was asked for.
        """
        rows = self.connection.execute(_SELECT_RATABLE, self._parameters(most=WINDOW)).all()
        places = {c: place for c, place in rows if place != self.annotator_id}
        numbers = {c: self._draw_number("ratings", c) for c in places}
        return sorted(places, key=lambda c: (places[c] is not None, numbers[c]))

    def _build_card(
        self, comparison_id: str, kind: CardKind, *, pass_no: int = 1, offered_to: str | None = None
    ) -> CardRow:
        # with the seed, which annotators do not know: else they could compute the id of a repeat
        key = ("card", comparison_id, self.annotator_id, pass_no, self.rules.seed)
        return {
            "card_id": content_id(*key),
            "comparison_id": comparison_id,
            "annotator_id": self.annotator_id,
            "pass_no": pass_no,
            "kind": kind.value,
            "is_swapped": bool(self._draw_number("side", comparison_id) & 1),
            "offered_to": offered_to,
        }

    def _draw_number(self, what: str, of: str | int) -> int:
        return _number_of(f"{what}/{self.rules.seed}/{self.annotator_id}/{of}")

    def _fetch_scalar(self, query: Any, **parameters: Any) -> Any:
        return self.connection.execute(query, self._parameters(**parameters)).scalar()

    def _parameters(self, **parameters: Any) -> dict[str, Any]:
        return {"annotator": self.annotator_id, "now": self.now, **parameters}


@lru_cache(maxsize=65_536)  # the next lease draws among nearly the same cards
def _number_of(name: str) -> int:
    return int.from_bytes(hashlib.sha256(name.encode()).digest()[:6])


def undealt_kind(rules: AnnotationRules) -> str:
    """The kind of cards that are not dealt now, whatever was dealt before; empty for none."""
    return "" if rules.rating_share else CardKind.RATING.value


# The conditions of the indexes, literally: else SQLite does not use them.
IS_UNFINISHED = offers.c.n_done < offers.c.n_wanted
_WITHOUT_PLACE = (CardKind.REPEAT.value, CardKind.RATING.value)
# values of offers that the `annotator` may be dealt
RESERVED_FOR: tuple[ColumnElement[Any], ...] = (literal_column("''"), bindparam("annotator"))


def is_held(table: Any = cards) -> ColumnElement[bool]:
    """The lease of a card runs at `now`."""
    return and_(
        table.c.state == literal_column("'leased'"), table.c.leased_until > bindparam("now")
    )


def is_own(table: Any = cards) -> ColumnElement[bool]:
    """A card of the `annotator`."""
    own: ColumnElement[bool] = table.c.annotator_id == bindparam("annotator")
    return own


def is_returned(table: Any = cards) -> ColumnElement[bool]:
    """The card was released or expired: its comparison may be dealt again."""
    # Selected by place, not by state as SQLite would: released cards that others took accumulate.
    state = table.c.state.concat("")
    expired = and_(state == "leased", table.c.leased_until <= bindparam("now"))
    return or_(state == "released", expired)


def count_held() -> ColumnElement[int]:
    """Number of cards that hold a place in an offer, those of the `annotator` left out."""
    other_cards = cards.alias("held")
    return (
        select(func.count())
        .select_from(other_cards)
        .where(
            other_cards.c.comparison_id == offers.c.comparison_id,
            other_cards.c.offered_to == offers.c.offered_to,
            other_cards.c.annotator_id != bindparam("annotator"),
            is_held(other_cards),
        )
        .scalar_subquery()
    )


def has_free_place() -> ColumnElement[bool]:
    """Fewer judgements of an offer are made, or in work by others, than wanted."""
    return and_(IS_UNFINISHED, offers.c.n_done + count_held() < offers.c.n_wanted)


def is_eligible() -> ColumnElement[bool]:
    """The comparison is not flagged, and the `annotator` did not write it."""
    own = comparisons.c.written_by
    return and_(comparisons.c.flag.is_(None), or_(own.is_(None), own != bindparam("annotator")))


def is_met(comparison_id: Any) -> ColumnElement[bool]:
    """The annotator has judged a card of the comparison, holds one, or has
    voted on it without a card: in a file, or by its id.
    """
    own, vote = cards.alias("own"), votes.alias("own_vote")
    card = select(literal(1)).where(
        is_own(own), own.c.comparison_id == comparison_id, ~is_returned(own)
    )
    cardless = select(literal(1)).where(
        is_own(vote), vote.c.comparison_id == comparison_id, vote.c.card_id.is_(None)
    )
    return or_(card.exists(), cardless.exists())


def _select_free_place(comparison_id: ColumnElement[str]) -> ColumnElement[Any]:
    """`offered_to` of an offer of a comparison with a free place, one reserved for this annotator
    first; NULL if there is none.
    """
    return (
        select(offers.c.offered_to)
        .where(
            offers.c.comparison_id == comparison_id,
            offers.c.reserved_for.in_(RESERVED_FOR),
            has_free_place(),
        )
        .order_by(offers.c.reserved_for.desc())
        .limit(1)
        .scalar_subquery()
    )


def _select_returned_cards() -> Select[Any]:
    """The annotator's newest released or expired cards that may be dealt again, in order: hidden
    ones as they were, normal ones if an offer of the comparison has a free place.
    """
    free_place = _select_free_place(cards.c.comparison_id)
    place = case((cards.c.kind.in_(_WITHOUT_PLACE), None), else_=free_place)
    return (
        select(*(c for c in cards.c if c.name != "offered_to"), place.label("offered_to"))
        .join(comparisons, comparisons.c.comparison_id == cards.c.comparison_id)
        .where(
            is_own(),
            cards.c.n > bindparam("since"),
            is_returned(),
            is_eligible(),
            cards.c.kind != bindparam("undealt"),
            or_(cards.c.kind != CardKind.NORMAL.value, free_place.is_not(None)),
        )
        .order_by(cards.c.n)
        .limit(bindparam("most"))
    )


def _select_repeatable_cards() -> Select[Any]:
    """Cards judged once before a moment, not flagged since, without a repeat that is judged or
    held.
    """
    second = cards.alias("second")
    repeat = select(literal(1)).where(
        is_own(second),
        second.c.comparison_id == cards.c.comparison_id,
        second.c.pass_no > 1,
        ~is_returned(second),
    )
    return (
        select(cards.c.comparison_id, cards.c.is_swapped)
        .join(comparisons, comparisons.c.comparison_id == cards.c.comparison_id)
        .where(
            is_own(),
            is_eligible(),
            comparisons.c.source.is_distinct_from(GATE_SOURCE),
            cards.c.state == "voted",
            cards.c.kind == CardKind.NORMAL.value,
            cards.c.settled_at < bindparam("before"),
            ~repeat.exists(),
        )
        .order_by(cards.c.settled_at)
        .limit(bindparam("most"))
    )


HAS_VOTED = select(literal(1)).where(is_own(votes)).limit(1)
_SELECT_LAST_PLACE = select(func.max(cards.c.n)).where(is_own())
_IS_JUDGED_TODAY = and_(
    cards.c.state.in_(("voted", "skipped")), cards.c.settled_at >= bindparam("midnight")
)
_COUNT_DAY = select(
    func.count().filter(is_held()).label("n_held"),
    func.count(cards.c.offered_to).filter(is_held()).label("n_places"),
    func.count().filter(_IS_JUDGED_TODAY, cards.c.offered_to.is_(None)).label("n_hidden"),
    func.count().filter(or_(is_held(), cards.c.state == "voted")).label("n_used"),
).where(is_own(), or_(is_held(), _IS_JUDGED_TODAY))
_SELECT_SETTLED_AT = (
    select(cards.c.settled_at)
    .where(is_own(), cards.c.state == "voted")
    .order_by(cards.c.settled_at.desc())
    .offset(bindparam("skipped"))
    .limit(1)
)
_SELECT_RETURNED = _select_returned_cards()
_SELECT_REPEATABLE = _select_repeatable_cards()
_SELECT_GOLD = (
    select(
        comparisons.c.comparison_id,
        _select_free_place(comparisons.c.comparison_id).label("free_place"),
    )
    .where(comparisons.c.gold.is_not(None), is_eligible(), ~is_met(comparisons.c.comparison_id))
    .order_by(comparisons.c.day, comparisons.c.position, comparisons.c.comparison_id)
    .limit(bindparam("most"))
)
_NEWEST = (comparisons.c.day.desc(), comparisons.c.position.desc())
_RECENT = comparisons.alias("recent")
_SHARED_OFFERS = offers.alias("shared_offers")
_SELECT_RATABLE = (
    select(
        comparisons.c.comparison_id,
        _select_free_place(comparisons.c.comparison_id).label("free_place"),
    )
    .join(_SHARED_OFFERS, _SHARED_OFFERS.c.comparison_id == comparisons.c.comparison_id)
    .where(
        comparisons.c.comparison_id.in_(
            select(_RECENT.c.comparison_id)
            .order_by(_RECENT.c.day.desc(), _RECENT.c.position.desc())
            .limit(RATED_FROM)
        ),
        _SHARED_OFFERS.c.offered_to == ANYBODY,
        comparisons.c.gold.is_(None),
        comparisons.c.source.is_distinct_from(GATE_SOURCE),  # its prompts must teach nothing
        is_eligible(),
        ~is_met(comparisons.c.comparison_id),
    )
    .order_by(*_NEWEST, comparisons.c.comparison_id)
    .limit(bindparam("most"))
)
_OPEN_OFFERS = (
    select(offers.c.comparison_id, offers.c.offered_to, offers.c.priority)
    .join(comparisons, comparisons.c.comparison_id == offers.c.comparison_id)
    .where(has_free_place(), is_eligible(), ~is_met(offers.c.comparison_id))
)
_SELECT_OFFERS = (
    _OPEN_OFFERS.where(
        offers.c.reserved_for == bindparam("reserved_for"),
        offers.c.priority >= bindparam("first"),
        offers.c.priority < bindparam("before"),
    )
    .order_by(offers.c.priority, offers.c.comparison_id)
    .limit(bindparam("most"))
)
_COUNT_OPEN = select(func.count()).select_from(
    union(
        *(
            _OPEN_OFFERS.with_only_columns(offers.c.comparison_id)
            .where(offers.c.reserved_for == name, offers.c.priority < bindparam("before"))
            .limit(bindparam("most"))
            .subquery()
            .select()
            for name in RESERVED_FOR
        )
    ).subquery()
)
_SELECT_SESSION = select(
    gate_sessions.c.most_share,
    gate_sessions.c.n_wanted,
    gate_sessions.c.opened_at,
    gate_sessions.c.asked_at,
).where(gate_sessions.c.state.in_(("open", "held")))
_COUNT_GATE_CARDS = (
    select(func.count())
    .select_from(cards)
    .join(comparisons, comparisons.c.comparison_id == cards.c.comparison_id)
    .where(
        is_own(),
        comparisons.c.source == GATE_SOURCE,
        comparisons.c.published_at >= bindparam("opened_at"),
        or_(is_held(), cards.c.state == "voted"),
    )
)

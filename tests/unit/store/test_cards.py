"""Dealing cards: places, leases, sides, repeats, gold, caps, and what stays hidden."""

import random
from collections import Counter
from concurrent.futures import ThreadPoolExecutor

import pandas as pd
import pytest
from sqlalchemy import and_, case, event, func, select

from rlhf_pipeline.core.errors import AlreadyVoted, InvalidVote, NotFound
from rlhf_pipeline.core.records import AnnotationRules, Card, CardKind, NewFeedback
from rlhf_pipeline.store import Store
from rlhf_pipeline.store.card_draw import EXPERIMENT_PRIORITY
from rlhf_pipeline.store.schema import cards, offers
from tests.unit.store.conftest import NOON, SetClock, undo_of, vote_on

PLAIN = AnnotationRules(repeat_share=0, gold_share=0)
HIDING = AnnotationRules(repeat_share=0.3, repeat_after=3, gold_share=0.3, seed=2)
DEALT_KINDS = {CardKind.NORMAL, CardKind.REPEAT, CardKind.GOLD}


@pytest.fixture
def publish(store: Store, make_comparisons):
    def publish_comparisons(n: int, *, prefix: str = "c", **columns: object) -> list[str]:
        frame = make_comparisons(n, prefix=prefix).assign(**columns)
        store.comparisons.publish(frame, published_at=NOON)
        return list(frame["comparison_id"])

    return publish_comparisons


@pytest.fixture
def offer(store: Store, publish):
    def publish_and_offer(n: int, *, overlap: int = 1, priority: int = 0, **more) -> list[str]:
        ids = publish(n, **more)
        store.cards.offer(ids, overlap=overlap, priority=priority)
        return ids

    return publish_and_offer


@pytest.fixture
def gold(publish):
    return lambda n: publish(n, prefix="g", gold=pd.Series(["a", "b"] * n, dtype="str")[:n])


def judge(
    store: Store, clock: SetClock, annotator: str, n: int, rules: AnnotationRules = PLAIN
) -> list[Card]:
    """Lease and vote, one at a time, a second apart."""
    cards = []
    for _ in range(n):
        dealt = store.cards.deal(annotator, 1, rules)
        if not dealt:
            break
        store.votes.cast(vote_on(dealt[0]))
        cards.append(dealt[0])
        clock.tick(seconds=1)
    return cards


def dealt(store: Store, annotator: str, n: int = 20) -> list[str]:
    return [card.comparison_id for card in store.cards.deal(annotator, n, PLAIN)]


def test_held_cards_are_dealt_again(store, clock, offer):
    offer(10)
    first = store.cards.deal("ann", 3, PLAIN)
    assert store.cards.deal("ann", 3, PLAIN) == first
    more = store.cards.deal("ann", 5, PLAIN)
    assert more[:3] == first
    assert [card.n for card in more] == [1, 2, 3, 4, 5]
    assert len({card.comparison_id for card in more}) == 5


@pytest.mark.parametrize("overlap", [1, 3])
def test_no_comparison_is_dealt_more_often_than_wanted(store, offer, overlap):
    """Eight annotators at once, until nothing is left."""
    n = 30
    offer(n, overlap=overlap)
    rules = PLAIN.model_copy(update={"overlap": overlap, "lease_minutes": 60})

    def work(annotator: str) -> list[Card]:
        done = []
        while cards := store.cards.deal(annotator, 3, rules):
            for card in cards:
                store.votes.cast(vote_on(card))
                done.append(card)
        return done

    with ThreadPoolExecutor(8) as pool:
        deals = list(pool.map(work, [f"ann{i}" for i in range(8)]))
    n_judged = Counter(card.comparison_id for dealt_cards in deals for card in dealt_cards)
    assert max(n_judged.values()) <= overlap
    for dealt_cards in deals:
        assert len({card.comparison_id for card in dealt_cards}) == len(dealt_cards)
    # A place may be left that only its own judges met: nobody else was there to take it.
    assert store.cards.remaining_work().n_done == sum(n_judged.values()) == n * overlap
    store.audit.verify()


@pytest.mark.parametrize("seed", range(3))
def test_places_are_counted_exactly_under_random_actions(store, clock, offer, gold, seed):
    """`n_done` is the number of judged cards with a place, and nobody holds one more."""
    ids = [*offer(6, overlap=2), *gold(6)]
    store.cards.offer(ids[6:9], overlap=1)
    draw = random.Random(seed)
    rules = HIDING.model_copy(update={"lease_minutes": 5})
    cards: list[Card] = []
    cast: list[tuple[Card, str]] = []
    for step in range(150):
        who, some = draw.choice(["ann", "bob", "cid", "dee"]), draw.sample(ids, 3)
        acts = [
            "deal",
            "vote",
            "vote",
            "skip",
            "undo",
            "time",
            "release",
            "offer",
            "ask",
            "withdraw",
        ]
        match draw.choice(acts):
            case "deal":
                cards += store.cards.deal(who, draw.randint(1, 4), rules)
            case "vote" | "skip" as act if cards:
                card = cards.pop(draw.randrange(len(cards)))
                if store.cards.get(card.card_id).state in ("leased", "released"):
                    choice = "skip" if act == "skip" else "a"
                    vote = store.votes.cast(vote_on(card, choice, idempotency_key=str(step)))
                    cast.append((card, vote.vote_id))
            case "undo" if cast:
                card, vote_id = cast.pop(draw.randrange(len(cast)))
                store.votes.cast(undo_of(card, vote_id, idempotency_key=str(step)))
                cards.append(card)
            case "time":
                clock.tick(minutes=draw.randint(1, 8))
            case "release" if cards:
                card = draw.choice(cards)
                store.cards.release(card.card_id, card.annotator_id)
            case "offer":
                store.cards.offer(some, overlap=draw.randint(1, 3))
            case "ask":
                store.cards.ask(who, some, actor="test")
            case "withdraw":
                store.cards.withdraw(some, actor="test")
        _check_places(store, clock)


def _check_places(store: Store, clock: SetClock) -> None:
    in_offer = and_(
        cards.c.comparison_id == offers.c.comparison_id, cards.c.offered_to == offers.c.offered_to
    )
    is_held = and_(cards.c.state == "leased", cards.c.leased_until > clock.now())
    n_voted, n_held = (
        func.coalesce(func.sum(case((condition, 1), else_=0)), 0)
        for condition in (cards.c.state == "voted", is_held)
    )
    places = select(offers.c.n_wanted, offers.c.n_done, n_voted, n_held).outerjoin(cards, in_offer)
    key = offers.c.comparison_id, offers.c.offered_to, offers.c.n_wanted, offers.c.n_done
    for row in store.database.fetch_all(places.group_by(*key)):
        n_wanted, n_done, place_votes, place_leases = row
        assert n_done == place_votes
        assert n_done + place_leases <= n_wanted


def test_an_expired_lease_goes_to_others(store, clock, offer):
    offer(1)
    (card,) = store.cards.deal("ann", 1, PLAIN)
    assert dealt(store, "bob") == []
    clock.tick(minutes=10, seconds=1)
    assert dealt(store, "bob") == [card.comparison_id]


def test_a_lease_is_extended_until_it_ends(store, clock, offer):
    offer(2)
    ids = dealt(store, "ann", 2)
    clock.tick(minutes=8)
    assert store.cards.extend("ann", 10) == 2
    clock.tick(minutes=8)
    assert dealt(store, "bob") == []
    assert dealt(store, "ann", 2) == ids
    clock.tick(minutes=3)
    assert store.cards.extend("ann", 10) == 0


def test_a_judged_card_is_not_released(store, clock, offer):
    offer(1)
    (card,) = store.cards.deal("ann", 1, PLAIN)
    store.votes.cast(vote_on(card))
    store.cards.release(card.card_id, "ann")
    assert store.cards.get(card.card_id).state == "voted"


def test_cards_of_others_cannot_be_released_or_voted_on(store, clock, offer):
    offer(1)
    (card,) = store.cards.deal("ann", 1, PLAIN)
    with pytest.raises(NotFound, match="of yours"):
        store.cards.release(card.card_id, "bob")
    with pytest.raises(NotFound, match="of yours"):
        store.votes.cast(vote_on(card.model_copy(update={"annotator_id": "bob"})))
    with pytest.raises(NotFound, match="no card 'nope'"):
        store.cards.get("nope")


def test_a_vote_that_contradicts_its_card_is_refused(store, clock, offer):
    offer(2)
    card, other = store.cards.deal("ann", 2, PLAIN)
    for wrong in ({"comparison_id": other.comparison_id}, {"is_swapped": not card.is_swapped}):
        with pytest.raises(InvalidVote, match="shows another comparison, or other sides"):
            store.votes.cast(vote_on(card.model_copy(update=wrong)))


def test_a_card_is_judged_once_or_superseded(store, clock, offer):
    offer(1)
    (card,) = store.cards.deal("ann", 1, PLAIN)
    first = store.votes.cast(vote_on(card))
    with pytest.raises(AlreadyVoted, match="supersede it"):
        store.votes.cast(vote_on(card, "b"))
    store.votes.cast(vote_on(card, "b", supersedes=first.vote_id))
    assert (store.votes.count(), store.cards.remaining_work().n_done) == (2, 1)


def test_skip_frees_the_place_and_undo_keeps_it(store, clock, offer):
    offer(2)
    card, other = store.cards.deal("ann", 2, PLAIN)
    store.votes.cast(vote_on(card, "skip"))
    assert dealt(store, "bob", 2) == [card.comparison_id]
    first = store.votes.cast(vote_on(other))
    back = store.votes.cast(undo_of(other, first.vote_id))
    assert store.cards.get(other.card_id).state == "leased"
    assert dealt(store, "cid") == []
    assert dealt(store, "ann", 1) == [other.comparison_id]
    store.votes.cast(vote_on(other, "b", supersedes=back.vote_id))
    assert store.cards.remaining_work().n_done == 1


@pytest.mark.parametrize("then", ["released", "expired"])
def test_late_vote_takes_a_freed_place(store, clock, offer, then):
    offer(1)
    (card,) = store.cards.deal("ann", 1, PLAIN)
    clock.tick(hours=1)
    (other,) = store.cards.deal("bob", 1, PLAIN)
    if then == "released":
        store.cards.release(other.card_id, "bob")
    else:
        clock.tick(hours=1)
    store.votes.cast(vote_on(card))
    assert store.cards.remaining_work().n_done == 1
    assert dealt(store, "cid") == []
    store.votes.cast(vote_on(other))
    assert (store.cards.remaining_work().n_done, store.votes.count()) == (1, 2)


def test_machine_votes_do_not_take_places(store, clock, offer):
    offer(3)
    machine = {"annotator_kind": "machine"}
    cards = store.cards.deal("bot", 3, PLAIN)
    first, *_ = [store.votes.cast(vote_on(card, **machine)) for card in cards]
    assert dealt(store, "bot") == [], "it judges each once"
    left = store.cards.remaining_work()
    assert (left.n_done, left.n_open) == (0, 3)
    undone = store.votes.cast(undo_of(cards[0], first.vote_id, **machine))
    store.votes.cast(vote_on(cards[0], "b", supersedes=undone.vote_id, **machine))
    people = store.cards.deal("ann", 3, PLAIN)
    assert len(people) == 3
    for card in people:
        store.votes.cast(vote_on(card))
    assert store.cards.remaining_work().n_done == 3


def test_sides_are_left_about_equally_often(store, clock, offer):
    offer(200)
    cards = store.cards.deal("ann", 200, PLAIN)
    assert 70 <= sum(card.is_swapped for card in cards) <= 130  # binomial, p < 10^-4


def test_sides_and_order_follow_from_seed_and_annotator(store, clock, offer, fresh_store):
    ids = offer(60, overlap=9)
    rules = PLAIN.model_copy(update={"overlap": 9, "seed": 5})
    cards_of = {
        who: {card.comparison_id: card.is_swapped for card in store.cards.deal(who, 40, rules)}
        for who in ("ann", "bob")
    }
    assert list(cards_of["ann"]) != list(cards_of["bob"])
    both = cards_of["ann"].keys() & cards_of["bob"].keys()
    assert {cards_of["ann"][c] == cards_of["bob"][c] for c in both} == {True, False}

    def draw(seed: int) -> dict[str, bool]:
        with fresh_store() as again:
            again.comparisons.publish(store.comparisons.with_ids(ids), published_at=NOON)
            again.cards.offer(ids, overlap=9)
            cards = again.cards.deal("ann", 40, rules.model_copy(update={"seed": seed}))
            return {card.comparison_id: card.is_swapped for card in cards}

    assert list(draw(5).items()) == list(cards_of["ann"].items())
    assert draw(6) != cards_of["ann"]


def test_repeats_come_in_their_share_swapped_and_never_soon(store, clock, offer):
    offer(320)
    rules = AnnotationRules(repeat_share=0.08, repeat_after=20, gold_share=0, seed=3)
    cards = judge(store, clock, "ann", 300, rules)
    assert len(cards) == 300
    at: dict[str, tuple[int, Card]] = {}
    repeats = []
    for place, card in enumerate(cards):
        if card.kind == CardKind.REPEAT:
            repeats.append(place)
            first_place, first = at[card.comparison_id]
            assert place - first_place > 20
            assert card.is_swapped is not first.is_swapped
            assert (first.pass_no, card.pass_no, card.offered_to) == (1, 2, None)
        else:
            assert card.comparison_id not in at
            at[card.comparison_id] = (place, card)
    assert 0.05 <= len(repeats) / 300 <= 0.10
    assert len({place % 12 for place in repeats}) > 4  # where in a dozen cannot be told
    assert len({cards[place].comparison_id for place in repeats}) == len(repeats)


def test_a_repeat_waits_although_cards_were_leased_ahead(store, clock, offer):
    """A hand of twenty is dealt at once: what is in it was not judged yet."""
    offer(200)
    rules = AnnotationRules(repeat_share=0.5, repeat_after=20, gold_share=0, prefetch=20)
    order: list[Card] = []
    while len(order) < 120:
        for card in store.cards.deal("ann", 20, rules):
            store.votes.cast(vote_on(card))
            clock.tick(seconds=1)
            order.append(card)
    first = {card.comparison_id: place for place, card in reversed(list(enumerate(order)))}
    gaps = [
        place - first[card.comparison_id]
        for place, card in enumerate(order)
        if card.kind == CardKind.REPEAT
    ]
    assert len(gaps) > 20
    assert min(gaps) > 20


def test_gold_comes_in_its_share_without_a_place_and_once(store, clock, offer, gold):
    offer(300)
    gold(40)
    rules = AnnotationRules(repeat_share=0, gold_share=0.1, seed=1)
    cards = judge(store, clock, "ann", 200, rules)
    gold_ids = [card.comparison_id for card in cards if card.kind == CardKind.GOLD]
    assert 15 <= len(gold_ids) <= 25
    assert len(set(gold_ids)) == len(gold_ids)
    assert all(c.startswith("g") for c in gold_ids)
    assert store.cards.remaining_work().n_done == 200 - len(gold_ids)


def test_a_gold_card_takes_a_place_in_an_offer_of_its_comparison(store, clock, gold):
    ids = gold(4)
    store.cards.offer(ids, overlap=1)
    rules = AnnotationRules(repeat_share=0, gold_share=0.5, seed=1)
    cards = store.cards.deal("ann", 4, rules)
    assert {card.kind for card in cards} == {CardKind.NORMAL, CardKind.GOLD}
    assert {card.comparison_id for card in cards} == set(ids), "each is dealt once"
    for card in cards:
        store.votes.cast(vote_on(card))
    assert store.cards.remaining_work().n_done == 4


def test_normal_cards_take_the_place_of_missing_gold(store, clock, offer):
    offer(50)
    rules = AnnotationRules(repeat_share=0, gold_share=0.5)
    assert len(judge(store, clock, "ann", 40, rules)) == 40


def test_annotators_are_not_dealt_their_own_text(store, clock):
    correction = NewFeedback(kind="correction", prompt="p", completion="bad", correction="good")
    feedback = store.feedback.add(correction, created_by="ann")
    store.cards.offer([feedback.comparison_id], overlap=2)
    assert dealt(store, "ann") == []
    assert dealt(store, "bob") == [feedback.comparison_id]


@pytest.mark.parametrize("dialect", ["sqlite"])
def test_lease_reads_the_queue_by_indexes(store, clock):
    """Without them a lease among 200,000 offers took a second."""
    statements: list[tuple[str, tuple]] = []

    @event.listens_for(store.database.engine, "before_cursor_execute")
    def note(connection, cursor, statement, values, context, executemany) -> None:
        statements.append((statement, values))

    store.cards.deal("ann", 5, HIDING.model_copy(update={"gold_share": 1, "repeat_share": 1}))
    store.cards.remaining_for("ann", HIDING)
    selects = [each for each in statements if each[0].startswith("SELECT")]
    with store.database.read_transaction() as connection:
        steps = [
            row[3]
            for statement, values in selects
            for row in connection.exec_driver_sql(f"EXPLAIN QUERY PLAN {statement}", values)
        ]
    searches = [step for step in steps if "offers" in step]
    assert {step.partition("INDEX ")[2] for step in searches} == {
        "ix_offers_to_do (reserved_for=? AND priority<?)",
        "ix_offers_to_do (reserved_for=? AND priority>? AND priority<?)",
        "sqlite_autoindex_offers_1 (comparison_id=?)",
    }
    scans = {step for step in steps if step.startswith("SCAN") and "anon" not in step}
    assert scans == {  # a project has few sessions of the gate
        "SCAN comparisons USING INDEX ix_comparisons_gold",
        "SCAN gate_sessions",
    }


def test_a_tenth_of_cards_is_of_experiments(store, clock, offer):
    offer(100)
    served = set(offer(40, prefix="s", priority=EXPERIMENT_PRIORITY))
    first = judge(store, clock, "ann", 60)
    assert 3 <= sum(card.comparison_id in served for card in first) <= 9
    rest = judge(store, clock, "ann", 200)
    assert len(first) + len(rest) == 140
    assert store.cards.remaining_for("ann", PLAIN).reason_empty == "nothing_open"


def test_flagged_comparisons_are_not_dealt(store, clock, publish, offer):
    ids = offer(3)
    (card,) = store.cards.deal("ann", 1, PLAIN)
    store.comparisons.flag(ids, "broken", actor="test")
    store.cards.release(card.card_id, "ann")
    assert dealt(store, "ann") == []
    assert store.cards.remaining_for("ann", PLAIN).reason_empty == "nothing_open"


def test_flagged_comparisons_are_not_repeated(store, clock, offer):
    offer(20)
    rules = AnnotationRules(repeat_share=0.5, repeat_after=1, gold_share=0)
    first = {card.comparison_id for card in judge(store, clock, "ann", 10, PLAIN)}
    store.comparisons.flag([*first], "pii", actor="test")
    later = judge(store, clock, "ann", 40, rules)
    assert any(card.kind == CardKind.REPEAT for card in later)
    assert not first & {card.comparison_id for card in later}


def test_the_days_cap_counts_votes_and_held_cards(store, clock, offer):
    offer(20)
    rules = PLAIN.model_copy(update={"max_votes_per_day": 5})
    assert len(judge(store, clock, "ann", 3, rules)) == 3
    assert len(store.cards.deal("ann", 20, rules)) == 2
    assert len(store.cards.deal("ann", 20, rules)) == 2
    assert len(judge(store, clock, "ann", 9, rules)) == 2
    assert store.cards.remaining_for("ann", rules).reason_empty == "cap_reached"
    assert len(store.cards.deal("bob", 20, rules)) == 5  # everybody's own
    clock.tick(days=1)
    assert len(store.cards.deal("ann", 20, rules)) == 5


def test_remaining_cards_count_open_and_held_ones(store, clock, offer):
    assert store.cards.remaining_for("ann", PLAIN).reason_empty == "nothing_open"
    offer(4)
    left = store.cards.remaining_for("ann", PLAIN)
    assert (left.n, left.reason_empty) == (4, None)
    store.cards.deal("bob", 3, PLAIN)
    assert store.cards.remaining_for("ann", PLAIN).n == 1
    assert store.cards.remaining_for("bob", PLAIN).n == 4


@pytest.mark.parametrize("how", ["released", "expired"])
def test_returned_cards_keep_their_places(store, clock, offer, gold, how):
    """Else whoever gives cards back and leases again sees which ones do not come: the hidden
    ones.
    """
    offer(200)
    gold(60)
    dealt_kinds = set()
    every = []
    for k in (1, 2, 5, 1, 3, 4, 2, 6, 1, 1, 1, 1):
        cards = store.cards.deal("ann", k, HIDING)
        for card in reversed(cards):
            if how == "released":
                store.cards.release(card.card_id, "ann")
        clock.tick(minutes=11)
        again = store.cards.deal("ann", k, HIDING)
        lease = {"leased_at", "leased_until"}
        assert [card.model_dump(exclude=lease) for card in again] == [
            card.model_dump(exclude=lease) for card in cards
        ]
        more = store.cards.deal("ann", k + 2, HIDING)
        assert more[:k] == again
        for card in more:
            dealt_kinds.add(card.kind)
            store.votes.cast(vote_on(card))
            clock.tick(seconds=1)
        every += more
    assert dealt_kinds == DEALT_KINDS
    assert [card.n for card in every] == list(range(1, len(every) + 1))
    assert store.cards.remaining_work().n_done == sum(
        card.kind == CardKind.NORMAL for card in every
    )


def _count_remaining(store: Store) -> int:
    return store.cards.remaining_for("ann", HIDING).n


def test_remaining_does_not_change_when_cards_are_leased_ahead(store, clock, offer, gold):
    offer(60)
    # answers are known of some that people are asked about as well
    store.cards.offer(gold(20)[::2], overlap=1)
    judge(store, clock, "ann", 10, HIDING)
    before = _count_remaining(store)
    counts = []
    for n in range(1, 31):
        store.cards.deal("ann", n, HIDING)
        counts.append(_count_remaining(store))
    cards = store.cards.deal("ann", 30, HIDING)
    assert {card.kind for card in cards} == DEALT_KINDS
    assert any(card.kind == CardKind.GOLD and card.offered_to is not None for card in cards)
    assert counts == [before] * 30
    for card in cards:
        store.cards.release(card.card_id, "ann")
    assert _count_remaining(store) == before


@pytest.mark.parametrize(
    "how", ["vote", "skip", "vote, undo, vote", "after the lease", "a machine's vote"]
)
def test_each_judgement_reduces_remaining_by_one(store, clock, offer, gold, how):
    offer(100)
    store.cards.offer(gold(20)[::2], overlap=1)
    judge(store, clock, "ann", 10, HIDING)
    cards = store.cards.deal("ann", 30, HIDING)
    assert {card.kind for card in cards} == DEALT_KINDS
    if how == "after the lease":
        clock.tick(minutes=11)
    for card in cards:
        before = _count_remaining(store)
        kind = "machine" if how == "a machine's vote" else "human"
        choice = "skip" if how == "skip" else "a"
        vote = store.votes.cast(vote_on(card, choice, annotator_kind=kind))
        assert _count_remaining(store) == before - 1, card.kind
        if how == "vote, undo, vote":
            undone = store.votes.cast(undo_of(card, vote.vote_id))
            assert _count_remaining(store) == before, card.kind
            store.votes.cast(vote_on(card, "b", supersedes=undone.vote_id))
            assert _count_remaining(store) == before - 1, card.kind


RATING = PLAIN.model_copy(update={"rating_share": 0.25, "seed": 3})


def rate(store: Store, clock: SetClock, n: int, rules: AnnotationRules = RATING) -> list[Card]:
    """Judge cards one at a time: vote, or rate."""
    done = []
    while len(done) < n and (cards := store.cards.deal("ann", 1, rules)):
        if cards[0].kind == CardKind.RATING:
            store.ratings.settle(cards[0].card_id, "rated", actor="ann")
        else:
            store.votes.cast(vote_on(cards[0]))
        clock.tick(seconds=1)
        done += cards
    return done


def test_ratings_come_in_their_share_and_end_a_comparison(store, clock, offer):
    offer(40)
    cards = rate(store, clock, 60)
    kinds = Counter(card.kind for card in cards)
    assert kinds == {CardKind.NORMAL: 30, CardKind.RATING: 10}
    assert len({card.comparison_id for card in cards}) == 40
    assert [card.n for card in cards] == list(range(1, 41))
    work = store.cards.remaining_work()
    assert (work.n_done, work.n_open) == (30, 10)  # those rated wait for others
    assert store.cards.remaining_for("ann", RATING).n == 0
    assert store.audit.verify() == 42


def test_comparisons_that_others_judged_are_rated_first(store, clock, offer, gold):
    judged_ids = offer(6)
    judge(store, clock, "bob", 6)
    asked_id, *_ = offer(12, prefix="d")
    store.cards.offer(gold(5), overlap=1)
    store.cards.ask("ann", [asked_id], actor="cara")
    rated = [card for card in rate(store, clock, 30) if card.kind == CardKind.RATING]
    ids = [card.comparison_id for card in rated]
    assert len(ids) >= 3
    assert set(ids) <= set(judged_ids)


def test_no_rating_is_dealt_unless_asked_for(store, clock, offer):
    offer(30)
    assert {card.kind for card in rate(store, clock, 8)} == {CardKind.NORMAL, CardKind.RATING}
    held_cards = store.cards.deal("ann", 8, RATING)
    ratings = {card.card_id for card in held_cards if card.kind == CardKind.RATING}
    assert ratings
    assert not ratings & {card.card_id for card in store.cards.deal("ann", 20, PLAIN)}
    for card in held_cards:
        store.cards.release(card.card_id, "ann")
    assert not ratings & {card.card_id for card in store.cards.deal("ann", 20, PLAIN)}
    assert ratings < {card.card_id for card in store.cards.deal("ann", 30, RATING)}


def test_a_rating_card_is_settled_once_until_its_undo(store, clock, offer):
    offer(9)
    card = next(c for c in store.cards.deal("ann", 8, RATING) if c.kind == CardKind.RATING)
    with pytest.raises(InvalidVote, match="POST ratings"):
        store.votes.cast(vote_on(card))
    for state in ("rated", "skipped"):
        store.ratings.settle(card.card_id, state, actor="ann")
        assert store.cards.get(card.card_id).state == state
        with pytest.raises(AlreadyVoted, match=f"was {state}"):
            store.ratings.settle(card.card_id, "rated", actor="ann")
        store.ratings.settle(card.card_id, "leased", actor="ann")
        assert store.cards.get(card.card_id) in store.cards.deal("ann", 8, RATING)
    for _ in range(2):
        store.ratings.settle(card.card_id, "skipped", actor="ann")

"""Dealing cards: slots, leases, sides, repeats, gold, caps; whoever asks how often."""

from collections import Counter
from concurrent.futures import ThreadPoolExecutor

import pandas as pd
import pytest

from rlhf_pipeline.errors import AlreadyVoted, InvalidVote, NotFound
from rlhf_pipeline.records import (
    AnnotationRules,
    Assignment,
    AssignmentKind,
    NewVote,
    VoteDetails,
)
from rlhf_pipeline.store import RemainingWork, Store
from tests.unit.store.conftest import NOON, SetClock

PLAIN = AnnotationRules(repeat_share=0, gold_share=0)


@pytest.fixture
def offer(store: Store, make_comparisons):
    def publish_and_offer(
        n: int, *, overlap: int = 1, prefix: str = "c", priority: int = 0, **columns: object
    ) -> list[str]:
        frame = make_comparisons(n, prefix=prefix).assign(**columns)
        store.comparisons.publish(frame, published_at=NOON)
        ids = list(frame["comparison_id"])
        store.assignments.offer(ids, overlap=overlap, priority=priority)
        return ids

    return publish_and_offer


@pytest.fixture
def gold(store: Store, make_comparisons):
    def publish(n: int, answer: str = "a") -> list[str]:
        frame = make_comparisons(n, prefix="g").assign(gold=pd.Series([answer] * n, dtype="str"))
        store.comparisons.publish(frame, published_at=NOON)
        return list(frame["comparison_id"])

    return publish


def vote_on(card: Assignment, choice: str = "a", **more: object) -> NewVote:
    values = {
        "voted_at": NOON,
        "idempotency_key": f"{card.assignment_id}/{more.get('supersedes')}/{choice}",
    }
    return NewVote(
        comparison_id=card.comparison_id,
        annotator_id=card.annotator_id,
        annotator_kind="human",
        choice=choice,
        origin="page",
        assignment_id=card.assignment_id,
        is_swapped=card.is_swapped,
        **{**values, **more},
    )


def judge(
    store: Store, clock: SetClock, annotator: str, n: int, rules: AnnotationRules = PLAIN
) -> list[Assignment]:
    """Lease and vote, one at a time, a second apart."""
    judged = []
    for _ in range(n):
        cards = store.assignments.deal(annotator, 1, rules)
        if not cards:
            break
        store.votes.cast(vote_on(cards[0]))
        judged.append(cards[0])
        clock.tick(seconds=1)
    return judged


def test_nobody_is_dealt_what_was_not_offered(store, clock, make_comparisons):
    store.comparisons.publish(make_comparisons(3), published_at=NOON)
    assert store.assignments.deal("ann", 5, PLAIN) == []
    assert store.assignments.remaining_work() == RemainingWork(
        n_comparisons=0, n_slots=0, n_done=0, n_leased=0
    )


def test_what_is_withdrawn_is_not_dealt_and_what_is_dealt_stays(store, clock, offer):
    ids = offer(3)
    (held,) = store.assignments.deal("ann", 1, PLAIN)
    assert store.assignments.withdraw(ids, actor="cura") == 2
    assert store.assignments.deal("bob", 5, PLAIN) == []
    store.votes.cast(vote_on(held))
    assert store.assignments.remaining_work().n_done == 1


def test_the_same_cards_are_dealt_again_while_they_are_held(store, clock, offer):
    offer(10)
    first = store.assignments.deal("ann", 3, PLAIN)
    assert store.assignments.deal("ann", 3, PLAIN) == first
    more = store.assignments.deal("ann", 5, PLAIN)
    assert more[:3] == first
    assert [card.n for card in more] == [1, 2, 3, 4, 5]
    assert len({card.comparison_id for card in more}) == 5


@pytest.mark.parametrize("overlap", [1, 3])
def test_a_comparison_is_never_dealt_more_often_than_wanted(store, offer, overlap):
    """Eight annotators at once, until nothing is left."""
    n = 30
    offer(n, overlap=overlap)
    rules = PLAIN.model_copy(update={"overlap": overlap, "lease_minutes": 60})

    def work(annotator: str) -> list[Assignment]:
        done = []
        while cards := store.assignments.deal(annotator, 3, rules):
            for card in cards:
                store.votes.cast(vote_on(card))
                done.append(card)
        return done

    with ThreadPoolExecutor(8) as pool:
        hands = list(pool.map(work, [f"ann{i}" for i in range(8)]))
    judged = Counter(card.comparison_id for hand in hands for card in hand)
    assert max(judged.values()) <= overlap
    for hand in hands:
        assert len({card.comparison_id for card in hand}) == len(hand)
    # A slot may be left that only its own judges met: nobody else was there to take it.
    left = store.assignments.remaining_work()
    assert left.n_done == sum(judged.values()) == n * overlap
    store.audit.verify()


def test_a_lease_that_ran_out_is_let_to_others(store, clock, offer):
    offer(1)
    (card,) = store.assignments.deal("ann", 1, PLAIN)
    assert store.assignments.deal("bob", 1, PLAIN) == []
    clock.tick(minutes=10, seconds=1)
    (again,) = store.assignments.deal("bob", 1, PLAIN)
    assert again.comparison_id == card.comparison_id
    assert store.assignments.holds_slot(again.assignment_id)
    assert not store.assignments.holds_slot(card.assignment_id)


def test_a_lease_is_prolonged(store, clock, offer):
    offer(2)
    cards = store.assignments.deal("ann", 2, PLAIN)
    clock.tick(minutes=8)
    assert store.assignments.extend("ann", 10) == 2
    clock.tick(minutes=8)
    assert store.assignments.deal("bob", 2, PLAIN) == []
    assert [card.assignment_id for card in store.assignments.deal("ann", 2, PLAIN)] == [
        card.assignment_id for card in cards
    ]
    clock.tick(minutes=3)
    assert store.assignments.extend("ann", 10) == 0  # over is over


def test_a_card_that_was_given_back_comes_again_with_its_sides(store, clock, offer):
    offer(1)
    (card,) = store.assignments.deal("ann", 1, PLAIN)
    store.assignments.release(card.assignment_id, "ann")
    (again,) = store.assignments.deal("ann", 1, PLAIN)
    assert (again.assignment_id, again.is_swapped) == (card.assignment_id, card.is_swapped)
    store.votes.cast(vote_on(again))
    store.assignments.release(card.assignment_id, "ann")  # nothing to do
    assert store.assignments.get(card.assignment_id).state == "voted"


def test_another_persons_card_is_neither_released_nor_voted_on(store, clock, offer):
    offer(1)
    (card,) = store.assignments.deal("ann", 1, PLAIN)
    with pytest.raises(NotFound, match="of yours"):
        store.assignments.release(card.assignment_id, "bob")
    with pytest.raises(NotFound, match="of yours"):
        store.votes.cast(vote_on(card.model_copy(update={"annotator_id": "bob"})))
    with pytest.raises(NotFound, match="no assignment 'nope'"):
        store.assignments.get("nope")


def test_a_vote_that_contradicts_its_card_is_refused(store, clock, offer):
    offer(2)
    one, two = store.assignments.deal("ann", 2, PLAIN)
    for wrong in ({"comparison_id": two.comparison_id}, {"is_swapped": not one.is_swapped}):
        with pytest.raises(InvalidVote, match="dealt another comparison, or other sides"):
            store.votes.cast(vote_on(one.model_copy(update=wrong)))


def test_a_card_is_judged_once_or_superseded(store, clock, offer):
    offer(1)
    (card,) = store.assignments.deal("ann", 1, PLAIN)
    first = store.votes.cast(vote_on(card))
    with pytest.raises(AlreadyVoted, match="supersede it"):
        store.votes.cast(vote_on(card, "b"))
    store.votes.cast(vote_on(card, "b", supersedes=first.vote_id))
    assert store.votes.count() == 2


def test_a_skip_frees_the_slot_for_others_and_a_vote_taken_back_does_not(store, clock, offer):
    offer(2)
    one, two = store.assignments.deal("ann", 2, PLAIN)
    store.votes.cast(vote_on(one, "skip"))
    (for_bob,) = store.assignments.deal("bob", 2, PLAIN)
    assert for_bob.comparison_id == one.comparison_id
    first = store.votes.cast(vote_on(two))
    undone = VoteDetails(flags=("undone",))
    back = store.votes.cast(vote_on(two, "skip", supersedes=first.vote_id, details=undone))
    assert store.assignments.get(two.assignment_id).state == "leased"
    assert store.assignments.deal("cid", 2, PLAIN) == []
    assert [card.assignment_id for card in store.assignments.deal("ann", 1, PLAIN)] == [
        two.assignment_id
    ]
    store.votes.cast(vote_on(two, "b", supersedes=back.vote_id))
    assert store.assignments.get(two.assignment_id).state == "voted"
    assert store.assignments.remaining_work().n_done == 1


def test_both_sides_stand_left_about_equally_often(store, clock, offer):
    offer(200)
    cards = store.assignments.deal("ann", 200, PLAIN)
    assert 70 <= sum(card.is_swapped for card in cards) <= 130  # binomial, p < 10^-4
    other = {
        card.comparison_id: card.is_swapped for card in store.assignments.deal("bob", 200, PLAIN)
    }
    assert other == {}


def test_sides_and_order_are_each_annotators_own_and_follow_from_the_seed(
    store, clock, offer, fresh_store
):
    offer(60, overlap=9)
    rules = PLAIN.model_copy(update={"overlap": 9, "seed": 5})
    hands = {
        who: [
            (card.comparison_id, card.is_swapped) for card in store.assignments.deal(who, 40, rules)
        ]
        for who in ("ann", "bob")
    }
    assert [c for c, _ in hands["ann"]] != [c for c, _ in hands["bob"]]
    both = dict(hands["ann"]).keys() & dict(hands["bob"]).keys()
    assert {dict(hands["ann"])[c] == dict(hands["bob"])[c] for c in both} == {True, False}
    store.assignments.deal("cid", 40, rules)

    def drawn(seed: int) -> list[tuple[str, bool]]:
        with fresh_store() as again:
            frame = store.comparisons.with_ids([f"c{i}" for i in range(60)])
            again.comparisons.publish(frame, published_at=NOON)
            again.assignments.offer(list(frame["comparison_id"]), overlap=9)
            dealt = again.assignments.deal("ann", 40, rules.model_copy(update={"seed": seed}))
            return [(card.comparison_id, card.is_swapped) for card in dealt]

    assert drawn(5) == hands["ann"]
    assert drawn(6) != hands["ann"]


def test_what_has_a_lower_priority_number_comes_first(store, clock, offer):
    offer(80, prefix="later", priority=1)
    offer(3, prefix="first", priority=-1)
    assert {card.comparison_id[:5] for card in store.assignments.deal("ann", 3, PLAIN)} == {"first"}


def test_repeats_come_in_their_share_with_sides_swapped_and_never_soon(store, clock, offer):
    offer(320)
    rules = AnnotationRules(repeat_share=0.08, repeat_after=20, gold_share=0, seed=3)
    judged = judge(store, clock, "ann", 300, rules)
    assert len(judged) == 300
    at = {}
    n_repeats = 0
    for place, card in enumerate(judged):
        if card.kind == AssignmentKind.REPEAT:
            n_repeats += 1
            first_place, first = at[card.comparison_id]
            assert place - first_place > 20
            assert card.is_swapped is not first.is_swapped
            assert (first.pass_no, card.pass_no, card.slot_no) == (1, 2, None)
        else:
            assert card.comparison_id not in at
            at[card.comparison_id] = (place, card)
    assert 0.05 <= n_repeats / 300 <= 0.10
    places = [place % 12 for place, card in enumerate(judged) if card.kind == AssignmentKind.REPEAT]
    assert len(set(places)) > 4  # where in a dozen cannot be told
    # each once
    assert (
        len({card.comparison_id for card in judged if card.kind == AssignmentKind.REPEAT})
        == n_repeats
    )


def test_a_repeat_waits_for_enough_votes_between_even_when_cards_were_dealt_ahead(
    store, clock, offer
):
    """A hand of twenty is dealt at once: what is in it was not judged yet."""
    offer(200)
    rules = AnnotationRules(repeat_share=0.5, repeat_after=20, gold_share=0, prefetch=20)
    order: list[Assignment] = []
    while len(order) < 120:
        for card in store.assignments.deal("ann", 20, rules):
            store.votes.cast(vote_on(card))
            clock.tick(seconds=1)
            order.append(card)
    first = {card.comparison_id: place for place, card in reversed(list(enumerate(order)))}
    gaps = [
        place - first[card.comparison_id]
        for place, card in enumerate(order)
        if card.kind == AssignmentKind.REPEAT
    ]
    assert len(gaps) > 20
    assert min(gaps) > 20


def test_gold_comes_in_its_share_takes_no_slot_and_never_twice(store, clock, offer, gold):
    offer(300)
    gold(40)
    rules = AnnotationRules(repeat_share=0, gold_share=0.1, seed=1)
    judged = judge(store, clock, "ann", 200, rules)
    shown = [card.comparison_id for card in judged if card.kind == AssignmentKind.GOLD]
    assert 15 <= len(shown) <= 25
    assert len(set(shown)) == len(shown)
    assert all(c.startswith("g") for c in shown)
    assert store.assignments.remaining_work().n_done == 200 - len(shown)


def test_where_there_is_no_gold_others_take_its_place(store, clock, offer):
    offer(50)
    rules = AnnotationRules(repeat_share=0, gold_share=0.5)
    assert len(judge(store, clock, "ann", 40, rules)) == 40


def test_nobody_is_dealt_what_they_wrote(store, clock, offer, make_comparisons):
    from rlhf_pipeline.records import NewFeedback

    sent = NewFeedback(kind="correction", prompt="p", completion="bad", correction="good")
    made = store.feedback.add(sent, created_by="ann")
    store.assignments.offer([made.comparison_id], overlap=2)
    assert store.assignments.deal("ann", 5, PLAIN) == []
    assert [card.comparison_id for card in store.assignments.deal("bob", 5, PLAIN)] == [
        made.comparison_id
    ]


def test_flagged_comparisons_are_nobodys_work(store, clock, offer):
    offer(3, flag=pd.Series(["identical"] * 3, dtype="str"))
    assert store.assignments.deal("ann", 5, PLAIN) == []
    assert store.assignments.remaining_for("ann", PLAIN).reason_empty == "no_comparisons"


def test_the_days_cap_counts_votes_and_cards_on_the_table(store, clock, offer):
    offer(20)
    rules = PLAIN.model_copy(update={"max_votes_per_day": 5})
    assert len(judge(store, clock, "ann", 3, rules)) == 3
    assert len(store.assignments.deal("ann", 20, rules)) == 2
    assert len(store.assignments.deal("ann", 20, rules)) == 2
    assert len(judge(store, clock, "ann", 9, rules)) == 2
    assert store.assignments.remaining_for("ann", rules).reason_empty == "cap_reached"
    assert len(store.assignments.deal("bob", 20, rules)) == 5  # everybody's own
    clock.tick(days=1)
    assert len(store.assignments.deal("ann", 20, rules)) == 5


def test_it_is_told_what_is_left_and_why_nothing_is(store, clock, offer):
    assert store.assignments.remaining_for("ann", PLAIN).reason_empty == "no_comparisons"
    offer(4)
    assert (
        store.assignments.remaining_for("ann", PLAIN).n,
        store.assignments.remaining_for("ann", PLAIN).reason_empty,
    ) == (4, None)
    store.assignments.deal("bob", 3, PLAIN)
    assert store.assignments.remaining_for("ann", PLAIN).n == 1
    assert store.assignments.remaining_for("bob", PLAIN).n == 4  # three on the table, one to come
    store.assignments.deal("bob", 4, PLAIN)
    assert store.assignments.remaining_for("ann", PLAIN).reason_empty == "others_hold_them"
    judge(store, clock, "bob", 4)
    assert store.assignments.remaining_for("bob", PLAIN).reason_empty == "all_judged_by_you"
    assert store.assignments.remaining_for("ann", PLAIN).reason_empty == "all_judged"


def test_slots_are_counted_by_comparison(store, clock, offer):
    offer(2, overlap=3)
    (card,) = store.assignments.deal("ann", 1, PLAIN)
    store.votes.cast(vote_on(card))
    other = ({"c0", "c1"} - {card.comparison_id}).pop()
    assert store.assignments.count_slots(["c0", "c1", "nope"]) == {
        card.comparison_id: (3, 1),
        other: (3, 0),
    }


HIDING = AnnotationRules(repeat_share=0.3, repeat_after=3, gold_share=0.3, seed=2)


@pytest.mark.parametrize("how", ["given back", "ran out"])
def test_what_was_given_back_or_ran_out_comes_again_whatever_its_kind(
    store, clock, offer, gold, how
):
    """Else whoever gives cards back and leases again sees which ones do not come: the hidden
    ones.
    """
    offer(200)
    gold(60)
    met: set[tuple[int, AssignmentKind]] = set()
    for k in (1, 2, 5, 1, 3, 4, 2, 6, 1, 1, 1, 1):
        dealt = store.assignments.deal("ann", k, HIDING)
        for card in reversed(dealt):
            if how == "given back":
                store.assignments.release(card.assignment_id, "ann")
        clock.tick(minutes=11)
        again = store.assignments.deal("ann", k, HIDING)
        fixed = [
            (card.assignment_id, card.n, card.kind, card.is_swapped, card.slot_no) for card in dealt
        ]
        assert [
            (card.assignment_id, card.n, card.kind, card.is_swapped, card.slot_no) for card in again
        ] == fixed
        more = store.assignments.deal("ann", k + 2, HIDING)
        assert more[:k] == again
        for card in more:
            met.add((k, card.kind))
            store.votes.cast(vote_on(card))
            clock.tick(seconds=1)
    assert {kind for k, kind in met if k == 1} == set(AssignmentKind)
    every = store.assignments.list_for_annotator("ann", limit=500)
    assert sorted(card.n for card in every) == list(range(1, len(every) + 1)), (
        "each place of the row holds one card"
    )
    assert store.assignments.remaining_work().n_done == sum(
        card.kind == AssignmentKind.NORMAL for card in every
    )


def _count_remaining(store: Store) -> int:
    return store.assignments.remaining_for("ann", HIDING).n


def test_what_is_left_does_not_move_when_cards_are_leased_ahead(store, clock, offer, gold):
    offer(60)
    gold(20)
    # answers are known of some that people are asked about as well
    store.assignments.offer([f"g{i}" for i in range(0, 20, 2)], overlap=1)
    judge(store, clock, "ann", 10, HIDING)
    before = _count_remaining(store)
    told = []
    for n in range(1, 31):
        store.assignments.deal("ann", n, HIDING)
        told.append(_count_remaining(store))
    cards = store.assignments.deal("ann", 30, HIDING)
    assert {card.kind for card in cards} == set(AssignmentKind)
    assert any(card.kind == AssignmentKind.GOLD and card.slot_no is not None for card in cards)
    assert told == [before] * 30
    for card in cards:
        store.assignments.release(card.assignment_id, "ann")
    assert _count_remaining(store) == before


@pytest.mark.parametrize("how", ["vote", "skip", "vote, undo, vote", "after the lease"])
def test_what_is_left_counts_down_by_every_card_alike(store, clock, offer, gold, how):
    offer(100)
    gold(20)
    store.assignments.offer([f"g{i}" for i in range(0, 20, 2)], overlap=1)
    judge(store, clock, "ann", 10, HIDING)
    cards = store.assignments.deal("ann", 30, HIDING)
    assert {card.kind for card in cards} == set(AssignmentKind)
    if how == "after the lease":
        clock.tick(minutes=11)
    for card in cards:
        before = _count_remaining(store)
        vote = store.votes.cast(vote_on(card, "skip" if how == "skip" else "a"))
        assert _count_remaining(store) == before - 1, card.kind
        if how == "vote, undo, vote":
            undone = store.votes.cast(
                vote_on(
                    card, "skip", supersedes=vote.vote_id, details=VoteDetails(flags=("undone",))
                )
            )
            assert _count_remaining(store) == before, card.kind
            store.votes.cast(vote_on(card, "b", supersedes=undone.vote_id))
            assert _count_remaining(store) == before - 1, card.kind


def test_a_gold_card_takes_the_slot_of_a_comparison_that_people_are_asked_about(
    store, clock, offer, gold
):
    ids = gold(4)
    store.assignments.offer(ids, overlap=1)
    rules = AnnotationRules(repeat_share=0, gold_share=0.5, seed=1)
    dealt = store.assignments.deal("ann", 4, rules)
    assert {card.kind for card in dealt} == {AssignmentKind.NORMAL, AssignmentKind.GOLD}
    assert {card.comparison_id for card in dealt} == set(ids), "each is dealt once"
    for card in dealt:
        store.votes.cast(vote_on(card))
    assert store.assignments.remaining_work().n_done == 4


@pytest.mark.parametrize("then", ["released", "ran out"])
def test_a_late_vote_takes_a_slot_that_was_let_again_and_is_free_again(store, clock, offer, then):
    offer(1)
    (card,) = store.assignments.deal("ann", 1, PLAIN)
    clock.tick(hours=1)
    (other,) = store.assignments.deal("bob", 1, PLAIN)
    if then == "released":
        store.assignments.release(other.assignment_id, "bob")
    else:
        clock.tick(hours=1)
    store.votes.cast(vote_on(card))
    assert store.assignments.holds_slot(card.assignment_id)
    assert store.assignments.remaining_work().n_done == 1
    assert store.assignments.deal("cid", 1, PLAIN) == []
    store.votes.cast(vote_on(other))
    assert not store.assignments.holds_slot(other.assignment_id)
    assert (store.assignments.remaining_work().n_done, store.votes.count()) == (1, 2)

"""Offers to anybody and to one annotator by name: what they add, who is dealt them, withdrawal."""

from datetime import timedelta

import pytest

from rlhf_pipeline.core.errors import UnknownComparison
from rlhf_pipeline.core.records import AnnotationRules, Role
from rlhf_pipeline.store import RemainingWork, Store
from tests.unit.store.conftest import NOON, SetClock, undo_of, vote_on

PLAIN = AnnotationRules(repeat_share=0, gold_share=0)


@pytest.fixture
def ids(store: Store, clock: SetClock, make_comparisons) -> list[str]:
    frame = make_comparisons(8)
    store.comparisons.publish(frame, published_at=NOON)
    return list(frame["comparison_id"])


def ask(store: Store, who: str, ids: list[str], **more: int) -> int:
    return store.cards.ask(who, ids, actor="test", **more)


def dealt(store: Store, who: str, n: int = 20) -> list[str]:
    return [card.comparison_id for card in store.cards.deal(who, n, PLAIN)]


def test_an_offer_is_safe_to_repeat_and_only_raised(store, ids):
    assert dealt(store, "ann") == []
    none = RemainingWork(n_comparisons=0, n_wanted=0, n_done=0, n_leased=0)
    assert store.cards.remaining_work() == none
    assert [store.cards.offer(ids[:2], overlap=n) for n in (2, 2, 3, 1)] == [4, 0, 2, 0]
    (card,) = store.cards.deal("ann", 1, PLAIN)
    store.votes.cast(vote_on(card))
    (other,) = {*ids[:2]} - {card.comparison_id}
    counts = {card.comparison_id: (3, 1), other: (3, 0)}
    assert store.cards.count_wanted([*ids, "nope"]) == counts
    left = store.cards.remaining_work()
    assert left == RemainingWork(n_comparisons=2, n_wanted=6, n_done=1, n_leased=0, oldest_at=NOON)
    with pytest.raises(UnknownComparison):
        store.cards.offer(["nothing"], overlap=1)


def test_lower_priority_numbers_come_first(store, ids):
    store.cards.offer(ids[:5], overlap=1, priority=1)
    store.cards.offer(ids[5:], overlap=1, priority=-1)
    assert sorted(dealt(store, "ann", 3)) == ids[5:]


def test_withdrawn_places_are_not_dealt_and_held_cards_stay(store, ids):
    store.cards.offer(ids[:3], overlap=1)
    (card,) = store.cards.deal("ann", 1, PLAIN)
    assert store.cards.withdraw(ids, actor="cura") == 2
    assert dealt(store, "bob") == []
    store.votes.cast(vote_on(card))
    assert store.cards.count_wanted(ids) == {card.comparison_id: (1, 1)}


def test_named_offers_come_first_and_only_to_that_person(store, ids):
    store.cards.offer(ids[:4], overlap=1)
    assert ask(store, "ann", ids[4:6]) == 2
    assert not set(dealt(store, "bo", 3)) & set(ids[4:6])
    assert set(dealt(store, "cy")) <= set(ids[:4])
    assert sorted(dealt(store, "ann", 2)) == ids[4:6]
    assert store.cards.remaining_work().n_wanted == 6


def test_named_offer_is_made_once_and_not_for_seen_cards(store, ids, make_vote):
    assert ask(store, "ann", ids[:2]) == 2
    assert ask(store, "ann", ids[:2]) == 0
    card, *_ = store.cards.deal("ann", 1, PLAIN)
    store.votes.cast(vote_on(card))
    assert ask(store, "ann", [card.comparison_id]) == 0
    store.cards.offer(ids[2:3], overlap=1)
    assert ids[2] in dealt(store, "ann")
    assert ask(store, "ann", ids[2:3]) == 0
    store.votes.cast(make_vote(ids[3], "ann"))
    assert ask(store, "ann", ids[3:4]) == 0
    with pytest.raises(UnknownComparison):
        ask(store, "ann", ["nothing"])


def test_named_offers_stay_after_release_and_expiry(store, ids, clock):
    ask(store, "ann", ids[:2])
    first, second = store.cards.deal("ann", 2, PLAIN)
    store.cards.release(first.card_id, "ann")
    assert dealt(store, "bo") == []
    clock.tick(minutes=PLAIN.lease_minutes + 1)
    assert dealt(store, "bo") == []
    again = store.cards.deal("ann", 5, PLAIN)
    assert {(card.card_id, card.is_swapped) for card in again} == {
        (card.card_id, card.is_swapped) for card in (first, second)
    }
    store.votes.cast(vote_on(again[0]))
    assert store.cards.remaining_work().n_done == 1


def test_skipped_named_offer_is_open_to_all_until_undone(store, ids, clock):
    ask(store, "ann", ids[:2])
    skipped, undone = store.cards.deal("ann", 2, PLAIN)
    store.votes.cast(vote_on(skipped, "skip"))
    skip = store.votes.cast(vote_on(undone, "skip"))
    store.votes.cast(undo_of(undone, skip.vote_id))
    assert dealt(store, "bo") == [skipped.comparison_id]
    clock.tick(hours=1)
    assert dealt(store, "cy") == [skipped.comparison_id]
    assert dealt(store, "ann") == [undone.comparison_id]


@pytest.mark.parametrize("leaves", ["disabled", "no more annotator", "engineer alone"])
def test_offers_of_a_disabled_user_are_open_to_all(store, ids, leaves):
    store.users.add(email="root@example.org", name="Root", roles=[Role.ADMIN], actor="test")
    ann = store.users.add(
        email="ann@example.org", name="Ann", roles=[Role.ANNOTATOR, Role.CURATOR], actor="test"
    ).user_id
    ask(store, ann, ids[:3])
    done, held_card, *_ = store.cards.deal(ann, 2, PLAIN)
    store.votes.cast(vote_on(done))
    store.users.change(ann, roles=[Role.CURATOR], actor="test")
    assert dealt(store, "bo") == [], "a curator votes"
    change = {
        "disabled": {"disabled": True},
        "no more annotator": {"roles": []},
        "engineer alone": {"roles": [Role.ENGINEER]},
    }[leaves]
    store.users.change(ann, **change, actor="root")
    left = sorted({*ids[:3]} - {done.comparison_id, held_card.comparison_id})
    assert dealt(store, "bo") == left
    store.database.clock.at += timedelta(hours=1)
    assert sorted(dealt(store, "cy")) == sorted([held_card.comparison_id, *left])
    (act,) = [
        link for link in store.audit.after(0, limit=100) if link.action == "comparisons.unname"
    ]
    assert (act.object_id, act.actor) == (f"2 judgements of {ann}", "root")
    assert store.audit.verify() > 0


def test_offers_and_withdrawals_are_audited(store, ids):
    ask(store, "ann", ids[:3], priority=5)
    assert store.cards.withdraw(ids[:2], actor="test") == 2
    assert dealt(store, "ann") == ids[2:3]
    offered, withdrawn = store.audit.after(0, limit=10)[-2:]
    assert (offered.action, offered.object_id, offered.actor) == (
        "comparisons.offer",
        "3 judgements of ann",
        "test",
    )
    assert withdrawn.action == "comparisons.withdraw"

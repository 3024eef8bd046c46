"""Judgements asked of one person by name: dealt to them first and to nobody else, until they
skip.
"""

from datetime import timedelta

import pytest

from rlhf_pipeline.errors import UnknownComparison
from rlhf_pipeline.records import (
    AnnotationRules,
    Assignment,
    NewVote,
    Role,
    VoteDetails,
)
from rlhf_pipeline.store import Store
from tests.unit.store.conftest import NOON, SetClock

PLAIN = AnnotationRules(repeat_share=0, gold_share=0)


@pytest.fixture
def ids(store: Store, make_comparisons) -> list[str]:
    store.database.clock = SetClock()
    frame = make_comparisons(8)
    store.comparisons.publish(frame, published_at=NOON)
    return list(frame["comparison_id"])


def ask(store: Store, who: str, ids: list[str], **more: int) -> int:
    return store.assignments.ask(who, ids, actor="test", **more)


def dealt(store: Store, who: str, n: int = 20) -> list[str]:
    return [card.comparison_id for card in store.assignments.deal(who, n, PLAIN)]


def vote_on(card: Assignment, choice: str = "a") -> NewVote:
    return NewVote(
        comparison_id=card.comparison_id,
        annotator_id=card.annotator_id,
        annotator_kind="human",
        choice=choice,
        origin="page",
        voted_at=NOON,
        idempotency_key=card.assignment_id,
        assignment_id=card.assignment_id,
        is_swapped=card.is_swapped,
    )


def taken_back(card: Assignment, vote_id: str) -> NewVote:
    undone = {
        "supersedes": vote_id,
        "idempotency_key": f"undo {card.assignment_id}",
        "details": VoteDetails(flags=("undone",)),
    }
    return vote_on(card, "skip").model_copy(update=undone)


def test_what_one_person_is_asked_for_is_dealt_to_them_first_and_to_nobody_else(store, ids):
    store.assignments.offer(ids[:4], overlap=1)
    assert ask(store, "ann", ids[4:6]) == 2
    assert not set(dealt(store, "bo", 3)) & set(ids[4:6])
    assert set(dealt(store, "cy")) <= set(ids[:4])
    assert sorted(dealt(store, "ann", 2)) == ids[4:6]
    assert store.assignments.remaining_for("dee", PLAIN).reason_empty == "others_hold_them"
    assert store.assignments.remaining_work().n_slots == 6


def test_nobody_is_asked_twice_nor_for_what_they_judged_or_hold(store, ids, make_comparisons):
    assert ask(store, "ann", ids[:2]) == 2
    assert ask(store, "ann", ids[:2]) == 0
    judged, *_ = store.assignments.deal("ann", 1, PLAIN)
    store.votes.cast(vote_on(judged))
    assert ask(store, "ann", [judged.comparison_id]) == 0
    store.assignments.offer(ids[2:3], overlap=1)
    assert ids[2] in dealt(store, "ann")
    assert ask(store, "ann", ids[2:3]) == 0
    plain = NewVote(
        comparison_id=ids[3],
        annotator_id="ann",
        annotator_kind="human",
        choice="a",
        origin="cli",
        voted_at=NOON,
        idempotency_key="by hand",
    )
    store.votes.cast(plain)
    assert ask(store, "ann", ids[3:4]) == 0
    with pytest.raises(UnknownComparison):
        ask(store, "ann", ["nothing"])


def test_it_stays_theirs_when_given_back_or_left_lying(store, ids):
    ask(store, "ann", ids[:2])
    first, second = store.assignments.deal("ann", 2, PLAIN)
    store.assignments.release(first.assignment_id, "ann")
    assert dealt(store, "bo") == []
    store.database.clock.at += timedelta(minutes=PLAIN.lease_minutes + 1)
    assert dealt(store, "bo") == []
    again = store.assignments.deal("ann", 5, PLAIN)
    assert {(card.assignment_id, card.is_swapped) for card in again} == {
        (card.assignment_id, card.is_swapped) for card in (first, second)
    }
    store.votes.cast(vote_on(again[0]))
    assert store.assignments.remaining_work().n_done == 1


def test_what_they_skip_is_left_to_anybody(store, ids):
    ask(store, "ann", ids[:1])
    (card,) = store.assignments.deal("ann", 1, PLAIN)
    store.votes.cast(vote_on(card, "skip"))
    assert dealt(store, "ann") == []
    assert dealt(store, "bo") == ids[:1]


def test_a_skip_that_was_taken_back_asks_the_same_person_again(store, ids):
    ask(store, "ann", ids[:2])
    for card in store.assignments.deal("ann", 2, PLAIN):
        skip = store.votes.cast(vote_on(card, "skip"))
        store.votes.cast(taken_back(card, skip.vote_id))
    assert dealt(store, "bo") == []
    store.database.clock.at += timedelta(hours=1)
    assert dealt(store, "bo") == []
    assert sorted(dealt(store, "ann")) == ids[:2]


@pytest.mark.parametrize("leaves", ["disabled", "no more annotator", "engineer alone"])
def test_what_somebody_was_asked_for_who_left_is_left_to_anybody(store, ids, leaves):
    store.users.add(email="root@example.org", name="Root", roles=[Role.ADMIN], actor="test")
    ann = store.users.add(
        email="ann@example.org", name="Ann", roles=[Role.ANNOTATOR, Role.CURATOR], actor="test"
    ).user_id
    ask(store, ann, ids[:3])
    done, held, *_ = store.assignments.deal(ann, 2, PLAIN)
    store.votes.cast(vote_on(done))
    store.users.set_roles(ann, [Role.CURATOR], actor="test")
    assert dealt(store, "bo") == [], "a curator votes"
    change = {
        "disabled": {"disabled": True},
        "no more annotator": {"roles": []},
        "engineer alone": {"roles": [Role.ENGINEER]},
    }[leaves]
    store.users.change(ann, **change, actor="root")
    left = sorted({*ids[:3]} - {done.comparison_id, held.comparison_id})
    assert dealt(store, "bo") == left
    store.database.clock.at += timedelta(hours=1)
    assert sorted(dealt(store, "cy")) == sorted([held.comparison_id, *left]), (
        "what lay on their table too, once its lease ended"
    )
    (act,) = [
        link for link in store.audit.after(0, limit=100) if link.action == "comparisons.unname"
    ]
    assert (act.object_id, act.actor) == (f"2 slots of {ann}", "root")
    assert store.audit.verify() > 0


def test_it_is_taken_back_as_any_other_and_is_an_act_of_the_chain(store, ids):
    ask(store, "ann", ids[:3], priority=5)
    assert store.assignments.withdraw(ids[:2], actor="test") == 2
    assert dealt(store, "ann") == ids[2:3]
    offered, withdrawn = store.audit.after(0, limit=10)[-2:]
    assert (offered.action, offered.object_id, offered.actor) == (
        "comparisons.offer",
        "3 slots of ann",
        "test",
    )
    assert withdrawn.action == "comparisons.withdraw"

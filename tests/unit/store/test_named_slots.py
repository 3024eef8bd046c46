"""Judgements asked of one person by name: dealt to them first and to nobody else, until they skip."""

from datetime import UTC, datetime, timedelta

import pytest
from sqlalchemy import text

from rlhf_pipeline.errors import UnknownComparison
from rlhf_pipeline.records import AnnotationRules, Assignment, NewVote
from rlhf_pipeline.store import Store

NOON = datetime(2026, 1, 1, 12, tzinfo=UTC)
PLAIN = AnnotationRules(repeat_share=0, gold_share=0)


class SetClock:
    def __init__(self) -> None:
        self.at = NOON

    def now(self) -> datetime:
        return self.at


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
        comparison_id=card.comparison_id, annotator_id=card.annotator_id, annotator_kind="human", choice=choice, origin="page", voted_at=NOON,
        idempotency_key=card.assignment_id, assignment_id=card.assignment_id, is_swapped=card.is_swapped,
    )  # fmt: skip


def test_what_one_person_is_asked_for_is_dealt_to_them_first_and_to_nobody_else(store, ids):
    store.assignments.offer(ids[:4], overlap=1)
    assert ask(store, "ann", ids[4:6]) == 2
    assert sorted(dealt(store, "bo", 3)) != ids[4:6]
    assert set(dealt(store, "cy")) <= set(ids[:4])
    assert sorted(dealt(store, "ann", 2)) == ids[4:6]
    assert store.assignments.left_for("dee", PLAIN).reason_empty == "others_hold_them"
    assert store.assignments.work_left().n_slots == 6


def test_it_stands_beside_what_anybody_is_asked_for(store, ids):
    assert ask(store, "ann", ids[:1]) == 1
    assert store.assignments.offer(ids[:1], overlap=2) == 2, "as many as people are to overlap, whoever was asked by name before"
    assert ask(store, "bo", ids[:1]) == 1
    (card,) = store.assignments.deal("ann", 1, PLAIN)
    store.votes.cast(vote_on(card))
    assert [dealt(store, who) for who in ("ann", "bo", "cy", "dee", "eve")] == [[], ids[:1], ids[:1], ids[:1], []]
    assert store.assignments.slots_of(ids[:1]) == {ids[0]: (4, 1)}


def test_nobody_is_asked_twice_nor_for_what_they_judged_hold_or_wrote(store, ids, make_comparisons):
    assert ask(store, "ann", ids[:2]) == 2
    assert ask(store, "ann", ids[:2]) == 0
    judged, *_ = store.assignments.deal("ann", 1, PLAIN)
    store.votes.cast(vote_on(judged))
    assert ask(store, "ann", [judged.comparison_id]) == 0
    store.assignments.offer(ids[2:3], overlap=1)
    assert ids[2] in dealt(store, "ann")
    assert ask(store, "ann", ids[2:3]) == 0
    plain = NewVote(
        comparison_id=ids[3], annotator_id="ann", annotator_kind="human", choice="a", origin="cli", voted_at=NOON, idempotency_key="by hand"
    )
    store.votes.cast(plain)
    assert ask(store, "ann", ids[3:4]) == 0
    with store.database.writing() as connection:
        connection.execute(text("UPDATE comparisons SET written_by = 'ann' WHERE comparison_id = :c"), {"c": ids[4]})
    assert ask(store, "ann", ids[4:6]) == 1
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
    assert {(card.assignment_id, card.is_swapped) for card in again} == {(card.assignment_id, card.is_swapped) for card in (first, second)}
    store.votes.cast(vote_on(again[0]))
    assert store.assignments.work_left().n_done == 1


def test_what_they_skip_is_left_to_anybody(store, ids):
    ask(store, "ann", ids[:1])
    (card,) = store.assignments.deal("ann", 1, PLAIN)
    store.votes.cast(vote_on(card, "skip"))
    assert dealt(store, "ann") == []
    assert dealt(store, "bo") == ids[:1]


def test_of_a_free_slot_and_ones_own_the_own_is_taken(store, ids):
    store.assignments.offer(ids[:1], overlap=1)
    ask(store, "ann", ids[:1])
    (card,) = store.assignments.deal("ann", 5, PLAIN)
    store.assignments.release(card.assignment_id, "ann")
    (card,) = store.assignments.deal("ann", 5, PLAIN)
    store.votes.cast(vote_on(card))
    assert dealt(store, "bo") == ids[:1]
    assert store.assignments.slots_of(ids[:1]) == {ids[0]: (2, 1)}


def test_it_is_taken_back_as_any_other_and_is_an_act_of_the_chain(store, ids):
    ask(store, "ann", ids[:3], priority=5)
    assert store.assignments.withdraw(ids[:2], actor="test") == 2
    assert dealt(store, "ann") == ids[2:3]
    offered, withdrawn = store.audit.after(0, limit=10)[-2:]
    assert (offered.action, offered.object_id, offered.actor) == ("comparisons.offer", "3 slots of ann", "test")
    assert withdrawn.action == "comparisons.withdraw"

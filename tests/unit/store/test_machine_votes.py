"""Votes of machines stand beside people's and are counted apart from them."""

from rlhf_pipeline.records import AnnotationRules, VoteDetails
from tests.unit.store.conftest import NOON

PLAIN = AnnotationRules(repeat_share=0, gold_share=0)


def test_a_comparison_that_only_a_machine_judged_waits_for_people(
    store, make_comparisons, make_vote
):
    store.comparisons.publish(make_comparisons(4), published_at=NOON)
    store.votes.cast(make_vote("c0", annotator_kind="machine"))
    store.votes.cast(make_vote("c1", annotator_kind="machine"))
    store.votes.cast(make_vote("c1", "bob", annotator_kind="human"))
    store.votes.cast(make_vote("c2", choice="skip", annotator_kind="human"))
    assert store.votes.n_voted_comparisons() == 2
    assert store.votes.n_voted_comparisons(after_seq=3) == 1
    assert store.votes.n_voted_comparisons(up_to_seq=2) == 0
    assert store.comparisons.find_offerable_ids(unvoted_only=True) == ["c0", "c2", "c3"]


def test_votes_of_a_machine_leave_the_slots_to_people(store, make_comparisons, make_vote):
    frame = make_comparisons(3)
    store.comparisons.publish(frame, published_at=NOON)
    store.assignments.offer(list(frame["comparison_id"]), overlap=1)

    def cast(card, kind, **more):
        on = {
            "assignment_id": card.assignment_id,
            "is_swapped": card.is_swapped,
            "annotator_kind": kind,
        }
        return store.votes.cast(make_vote(card.comparison_id, card.annotator_id, **on, **more))

    cards = store.assignments.deal("bot", 3, PLAIN)
    first, *_ = [cast(card, "machine", idempotency_key=card.assignment_id) for card in cards]
    assert store.assignments.deal("bot", 3, PLAIN) == [], "it judges each once"
    left = store.assignments.remaining_work()
    assert (left.n_done, left.n_open) == (0, 3)
    undone = cast(
        cards[0],
        "machine",
        choice="skip",
        supersedes=first.vote_id,
        details=VoteDetails(flags=("undone",)),
    )
    cast(cards[0], "machine", supersedes=undone.vote_id, idempotency_key="again")
    people = store.assignments.deal("ann", 3, PLAIN)
    assert len(people) == 3
    for card in people:
        cast(card, "human", idempotency_key=card.assignment_id)
    assert store.assignments.remaining_work().n_done == 3

"""Votes of machines stand beside people's and are counted apart from them."""

from tests.unit.store.conftest import NOON


def test_machine_judged_comparison_waits_for_people(store, make_comparisons, make_vote):
    store.comparisons.publish(make_comparisons(4), published_at=NOON)
    store.votes.cast(make_vote("c0", annotator_kind="machine"))
    store.votes.cast(make_vote("c1", annotator_kind="machine"))
    store.votes.cast(make_vote("c1", "bob", annotator_kind="human"))
    store.votes.cast(make_vote("c2", choice="skip", annotator_kind="human"))
    assert store.votes.n_voted_comparisons() == 2
    assert store.votes.n_voted_comparisons(after_seq=3) == 1
    assert store.votes.n_voted_comparisons(up_to_seq=2) == 0
    assert store.comparisons.find_offerable_ids(unvoted_only=True) == ["c0", "c2", "c3"]

"""What is looked up by comparison instead of by day: a comparison may be judged on days after its
own.
"""

from datetime import UTC, datetime

from rlhf_pipeline.feedback.votes.counting import counting_votes
from tests.unit.store.conftest import NOON

SECOND_DAY = datetime(2026, 1, 2, 12, tzinfo=UTC)


def test_votes_of_comparisons_span_all_days_up_to_the_seq(store, make_comparisons, make_vote):
    store.comparisons.publish(make_comparisons(3), published_at=NOON)
    store.votes.cast(make_vote("c0", "ann"))
    store.votes.cast(make_vote("c1", "ann"))
    store.votes.cast(make_vote("c0", "bob", voted_at=SECOND_DAY))
    frame = counting_votes(store.votes.log(comparison_ids=["c0", "c2", "unknown"]))
    assert frame[["annotator_id", "day"]].values.tolist() == [
        ["ann", "2026-01-01"],
        ["bob", "2026-01-02"],
    ]
    assert counting_votes(store.votes.log(comparison_ids=["c0"], up_to_seq=2))[
        "annotator_id"
    ].tolist() == ["ann"]
    assert counting_votes(store.votes.log(comparison_ids=[])).empty

"""All comparisons and all votes, read in batches for exports."""

from datetime import timedelta

import pandas as pd
import pytest

from rlhf_pipeline.core.frames import COMPARISONS, EXPORTED_VOTES, check_frame
from tests.unit.store.conftest import NOON


def imported(comparisons, **columns):
    return check_frame(
        comparisons.assign(
            source="elsewhere", source_pair_id="pair " + comparisons["comparison_id"], **columns
        ),
        COMPARISONS,
    )


@pytest.mark.parametrize("batch_rows", [1, 2, 3, 100])
def test_all_comparisons_come_once_each_by_day_and_position(store, make_comparisons, batch_rows):
    own = make_comparisons(3)
    foreign = imported(
        make_comparisons(2, day="2025-12-31", prefix="z"), flag="repeated", split="test"
    )
    store.comparisons.publish(own, published_at=NOON)
    store.comparisons.publish(foreign, published_at=NOON)
    batches = list(store.comparisons.stream(batch_rows))
    assert all(len(batch) <= batch_rows for batch in batches)
    pd.testing.assert_frame_equal(
        pd.concat(batches, ignore_index=True), pd.concat([foreign, own], ignore_index=True)
    )


@pytest.mark.parametrize("batch_rows", [1, 2, 100])
def test_votes_stream_in_seq_order_with_counting_flag(
    store, make_comparisons, make_vote, batch_rows
):
    store.comparisons.publish(imported(make_comparisons(2)), published_at=NOON)
    first = store.votes.cast(
        make_vote(reason="a guess", duration_s=2.5, stated_confidence=0.5, task_id="t")
    )
    store.votes.cast(make_vote(choice="b", supersedes=first.vote_id, idempotency_key="corrected"))
    store.votes.cast(
        make_vote(choice="tie", idempotency_key="second pass", voted_at=NOON + timedelta(days=3))
    )
    store.votes.cast(make_vote("c1", choice="skip", voted_at=None, origin="import"))
    batches = list(store.votes.iter_log(schema=EXPORTED_VOTES, batch_rows=batch_rows))
    assert all(len(batch) <= batch_rows for batch in batches)
    cast = check_frame(pd.concat(batches, ignore_index=True), EXPORTED_VOTES)
    assert cast["seq"].tolist() == [1, 2, 3, 4]
    assert cast["choice"].tolist() == ["a", "b", "tie", "skip"]
    assert cast["is_superseded"].tolist() == [True, False, False, False]
    assert cast["is_counting"].tolist() == [False, False, True, True]
    assert cast["source_pair_id"].tolist() == ["pair c0"] * 3 + ["pair c1"]
    assert cast.loc[0, ["reason", "duration_s", "stated_confidence", "task_id"]].tolist() == [
        "a guess",
        2.5,
        0.5,
        "t",
    ]
    assert (
        cast.loc[1:, ["reason", "duration_s", "stated_confidence", "task_id"]].isna().all(axis=None)
    )
    assert cast["voted_at"].isna().tolist() == [False, False, False, True]


def test_vote_stream_is_a_snapshot_at_its_seq(store, make_comparisons, make_vote):
    store.comparisons.publish(make_comparisons(3), published_at=NOON)
    first = store.votes.cast(make_vote("c0"))
    store.votes.cast(make_vote("c1"))
    stream = store.votes.iter_log(schema=EXPORTED_VOTES, batch_rows=1)
    read = [next(stream)]
    store.votes.cast(
        make_vote("c0", choice="b", supersedes=first.vote_id, idempotency_key="corrected")
    )
    store.votes.cast(make_vote("c2"))
    read += stream
    assert [(row.seq, row.is_superseded) for batch in read for row in batch.itertuples()] == [
        (1, False),
        (2, False),
    ]
    again = store.votes.log(up_to_seq=2, schema=EXPORTED_VOTES)
    pd.testing.assert_frame_equal(again, pd.concat(read, ignore_index=True))
    assert store.votes.log(schema=EXPORTED_VOTES)["is_superseded"].tolist() == [
        True,
        False,
        False,
        False,
    ]

"""What came from elsewhere: votes without a time, comparisons that make no pair, predictions
written after the votes.
"""

from datetime import UTC, datetime

import pytest

from rlhf_pipeline.core.errors import PipelineError
from rlhf_pipeline.feedback.votes.counting import counting_votes
from rlhf_pipeline.store.comparisons import pair_key
from tests.unit.store.conftest import NOON

SECOND_DAY = datetime(2026, 1, 2, 12, tzinfo=UTC)
MODEL = "demo.reward_model@1"


def imported(frame, **columns):
    return frame.assign(source="elsewhere", **columns)


def test_undated_vote_has_the_day_of_its_import(store, make_comparisons, make_vote):
    store.comparisons.publish(make_comparisons(1), published_at=NOON)
    vote = store.votes.cast(make_vote(voted_at=None, origin="import"))
    assert vote.voted_at is None
    assert vote.day == vote.received_at.date()
    assert store.votes.get(vote.vote_id) == vote
    snapshot = counting_votes(store.votes.log([str(vote.day)]))
    assert snapshot["voted_at"].isna().tolist() == [True]
    store.audit.verify()


def test_an_undated_vote_is_in_no_error_stream(
    store, make_comparisons, make_predictions, make_vote
):
    frame = make_comparisons(2)
    store.comparisons.publish(frame, make_predictions(frame), published_at=NOON)
    store.votes.cast(make_vote("c0", choice="b", voted_at=None, origin="import"))
    dated = store.votes.cast(make_vote("c1", choice="b"))
    assert store.detectors.errors_of(MODEL)["seq"].tolist() == [dated.seq]


def test_the_task_of_a_vote_is_kept_and_audited(store, make_comparisons, make_vote):
    store.comparisons.publish(make_comparisons(2), published_at=NOON)
    with_task = store.votes.cast(make_vote("c0", task_id="hit 7"))
    store.votes.cast(make_vote("c1"))
    assert store.votes.get(with_task.vote_id).task_id == "hit 7"
    store.audit.verify()


def test_imported_comparison_keeps_its_fields(store, make_comparisons):
    frame = imported(
        make_comparisons(1),
        source_pair_id="x1",
        split_group="debate",
        split="test",
        gold="b",
        flag="repeated",
    )
    store.comparisons.publish(frame, published_at=NOON)
    row = store.comparisons.with_ids(["c0"]).iloc[0]
    columns = ("source", "source_pair_id", "split_group", "split", "gold", "flag")
    assert tuple(row[list(columns)]) == ("elsewhere", "x1", "debate", "test", "b", "repeated")
    assert store.comparisons.with_source_ids(["x1", "x2"]) == {"x1": "c0"}


def test_imported_comparisons_are_not_part_of_a_pipeline_day(store, make_comparisons):
    store.comparisons.publish(make_comparisons(1, prefix="own"), published_at=NOON)
    store.comparisons.publish(imported(make_comparisons(1, prefix="theirs")), published_at=NOON)
    assert store.comparisons.for_days(["2026-01-01"])["comparison_id"].tolist() == ["own0"]
    assert store.comparisons.count() == 2


def test_source_id_names_one_comparison(store, make_comparisons):
    store.comparisons.publish(imported(make_comparisons(1), source_pair_id="x1"), published_at=NOON)
    with pytest.raises(PipelineError):
        store.comparisons.publish(
            imported(make_comparisons(1, prefix="d"), source_pair_id="x1"), published_at=NOON
        )
    assert store.comparisons.count() == 1


def test_equal_texts_are_found_on_either_side(store, make_comparisons):
    frame = make_comparisons(2)
    store.comparisons.publish(frame, published_at=NOON)
    prompt, a, b = frame.loc[0, ["prompt", "completion_a", "completion_b"]]
    assert store.comparisons.with_pair_keys([pair_key(prompt, b, a), pair_key("other", a, b)]) == {
        pair_key(prompt, a, b): "c0"
    }


def test_flagged_comparison_is_not_offered_or_counted(store, make_comparisons, make_vote):
    store.comparisons.publish(
        imported(make_comparisons(2), flag=["identical", None]), published_at=NOON
    )
    assert store.comparisons.find_offerable_ids() == ["c1"]
    store.votes.cast_many([make_vote("c0"), make_vote("c1")])
    assert store.votes.n_voted_comparisons() == 1
    assert store.votes.n_voted_comparisons(up_to_seq=1) == 0


def test_replayed_prediction_is_refused_if_its_model_saw_votes(
    store, make_comparisons, make_predictions, make_vote
):
    frame = make_comparisons(3)
    store.comparisons.publish(frame, published_at=NOON)
    store.votes.cast_many(
        [
            make_vote("c0"),
            make_vote("c1", voted_at=SECOND_DAY),
            make_vote("c0", "bob", voted_at=SECOND_DAY),
        ]
    )
    replayed = store.predictions.replay(make_predictions(frame), data_seq=1)
    assert (replayed.n_written, replayed.n_known, replayed.n_refused) == (2, 0, 1)
    stored = store.predictions.for_comparisons(["c0", "c1", "c2"])
    assert stored["comparison_id"].tolist() == ["c1", "c2"]
    assert stored["is_replayed"].tolist() == [True, True]
    again = store.predictions.replay(make_predictions(frame), data_seq=1)
    assert (again.n_written, again.n_known, again.n_refused) == (0, 2, 1)
    store.audit.verify()

"""Publishing comparisons with their predictions, and what is open for an annotator."""

import pandas as pd
import pytest

from rlhf_pipeline.core.errors import UnknownComparison
from rlhf_pipeline.core.frames import COMPARISONS
from rlhf_pipeline.store import PublishResult
from tests.unit.store.conftest import NOON

DAY = "2026-01-01"


def test_publishing_twice_changes_nothing(store, make_comparisons, make_predictions):
    comparisons = make_comparisons(3)
    predictions = make_predictions(comparisons)
    assert store.comparisons.publish(comparisons, predictions, published_at=NOON) == PublishResult(
        n_new=3, n_predictions=3
    )
    assert store.comparisons.publish(comparisons, predictions, published_at=NOON) == PublishResult(
        n_known=3
    )
    pd.testing.assert_frame_equal(store.comparisons.for_days([DAY]), comparisons)
    pd.testing.assert_frame_equal(store.predictions.for_days([DAY]), predictions)
    assert (store.comparisons.count(), store.predictions.count()) == (3, 3)


def test_publishing_exceeds_one_transaction(store, make_comparisons, make_predictions):
    comparisons = make_comparisons(620)
    result = store.comparisons.publish(
        comparisons, make_predictions(comparisons), published_at=NOON
    )
    assert result == PublishResult(n_new=620, n_predictions=620)
    assert store.comparisons.for_days([DAY])["position"].tolist() == list(range(620))


def test_a_prediction_after_the_vote_is_refused(
    store, make_comparisons, make_predictions, make_vote
):
    comparisons = make_comparisons(3)
    store.comparisons.publish(comparisons, published_at=NOON)
    store.votes.cast(make_vote("c1"))
    result = store.comparisons.publish(
        comparisons, make_predictions(comparisons), published_at=NOON
    )
    assert result == PublishResult(n_known=3, n_predictions=2, n_predictions_refused=1)
    assert store.predictions.for_days([DAY])["comparison_id"].tolist() == ["c0", "c2"]


def test_first_prediction_is_never_overwritten(
    store, make_comparisons, make_predictions, make_vote
):
    comparisons = make_comparisons(1)
    store.comparisons.publish(comparisons, make_predictions(comparisons, 0.7), published_at=NOON)
    store.votes.cast(make_vote())
    result = store.comparisons.publish(
        comparisons, make_predictions(comparisons, 0.2), published_at=NOON
    )
    assert result == PublishResult(n_known=1)
    assert store.predictions.for_days([DAY])["p_calibrated"].tolist() == [0.7]


def test_several_reward_models_may_predict(store, make_comparisons, make_predictions):
    comparisons = make_comparisons(2)
    both = pd.concat(
        [
            make_predictions(comparisons),
            make_predictions(comparisons, reward_model="demo.reward_model@2"),
        ]
    )
    assert store.comparisons.publish(comparisons, both, published_at=NOON).n_predictions == 4
    empty = store.comparisons.publish(
        COMPARISONS.empty_frame(),
        make_predictions(comparisons, reward_model="other@1"),
        published_at=NOON,
    )
    assert empty == PublishResult(n_predictions=2)


def test_prediction_of_an_unpublished_comparison_is_refused(
    store, make_comparisons, make_predictions
):
    with pytest.raises(UnknownComparison, match="first 'c0'"):
        store.comparisons.publish(
            COMPARISONS.empty_frame(), make_predictions(make_comparisons(1)), published_at=NOON
        )


def test_comparisons_are_found_by_id_in_any_order(store, make_comparisons):
    comparisons = make_comparisons(4)
    store.comparisons.publish(comparisons, published_at=NOON)
    frame = store.comparisons.with_ids(["c3", "unknown", "c1", "c3"])
    assert frame["comparison_id"].tolist() == ["c1", "c3"]
    assert store.comparisons.with_ids([]).empty

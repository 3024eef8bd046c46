import pandas as pd
import pytest

from rlhf_pipeline.core.errors import ConfigurationError, ExpectationFailed, NotEnoughVotes
from rlhf_pipeline.core.frames import RETRAINING_SET
from rlhf_pipeline.improve.retraining.strategies import train_candidate
from rlhf_pipeline.improve.retraining.strategies.base import check_trainable_pairs, sample_by_weight
from rlhf_pipeline.improve.retraining.strategies.sft import select_best_completions
from rlhf_pipeline.simulation.testing.strategies import PARAMS


def weighted(weights):
    return pd.DataFrame(
        {"comparison_id": [f"c{i:03d}" for i in range(len(weights))], "weight": weights}
    )


def retraining_set(n=3, **columns):
    rows = {
        "comparison_id": [f"c{i}" for i in range(n)],
        "prompt_id": "p",
        "prompt": "Say hello.",
        "chosen": "Hello!",
        "rejected": "No.",
        "margin": 0.5,
        "weight": 1.0,
        "difficulty": 0.5,
        "origin": "vote",
        "information": 0.5,
        "reason": "unsure",
        "split": "train",
        "day": "2026-01-01",
    }
    return pd.DataFrame(rows | columns)


def test_weight_one_is_taken_once_and_weight_zero_never():
    sample = sample_by_weight(weighted([1.0] * 20 + [0.0] * 20), seed=0)
    assert sorted(sample["comparison_id"]) == [f"c{i:03d}" for i in range(20)]


@pytest.mark.parametrize(("weight", "expected"), [(0.25, 25), (1.5, 150), (3.0, 300)])
def test_a_weight_is_the_expected_number_of_copies(weight, expected):
    sample = sample_by_weight(weighted([weight] * 100), seed=1)
    assert abs(len(sample) - expected) <= 1
    copies = (
        sample["comparison_id"]
        .value_counts()
        .reindex(weighted([weight] * 100)["comparison_id"], fill_value=0)
    )
    assert copies.between(int(weight), int(weight) + (weight % 1 > 0)).all()


def test_sample_depends_on_seed_and_ids_not_on_row_order():
    rows = weighted([0.5] * 50)
    again = sample_by_weight(rows.sample(frac=1, random_state=4), seed=7)
    pd.testing.assert_frame_equal(sample_by_weight(rows, seed=7), again)
    assert (
        sample_by_weight(rows, seed=8)["comparison_id"].tolist() != again["comparison_id"].tolist()
    )


def test_rows_of_an_evaluation_split_are_never_trained_on():
    with pytest.raises(ExpectationFailed, match="first comparison c1 \\(test\\)"):
        check_trainable_pairs(retraining_set(split=["train", "test", "train"]), 1)


def test_every_row_with_one_text_is_named():
    rows = retraining_set(rejected=["x1 ", "y", "x3"], chosen=["x1", "x2", "x3"])
    with pytest.raises(ExpectationFailed, match=r'leave_out of retraining_set = \["c0", "c2"\]'):
        check_trainable_pairs(rows, 1)


def test_too_few_pairs_are_refused_with_the_cure():
    with pytest.raises(
        NotEnoughVotes,
        match=r"3 preference pairs .* needs 50\. Collect more votes or lower min_pairs",
    ):
        check_trainable_pairs(retraining_set(), 50)
    with pytest.raises(NotEnoughVotes, match="0 preference pairs"):
        check_trainable_pairs(RETRAINING_SET.empty_frame(), 1)


def test_best_of_n_keeps_the_completion_that_won_most():
    pairs = retraining_set(
        4,
        chosen=["good", "good", "fair", "poor"],
        rejected=["poor", "fair", "poor", "good"],
        margin=[0.5, 0.5, 0.5, 0.25],
    )
    best = select_best_completions(pairs, keep=1)
    assert best["chosen"].tolist() == ["good"]
    assert best["weight"].tolist() == [1.0]
    assert select_best_completions(pairs.iloc[::-1], keep=1).equals(best)


def test_losing_completion_is_not_imitated():
    pairs = retraining_set(3, chosen=["x", "y", "y"], rejected=["y", "x", "x"])
    assert select_best_completions(pairs, keep=5)["chosen"].tolist() == ["y"]


@pytest.mark.parametrize(
    ("strategy", "rows"),
    [
        ("dpo", retraining_set(2, weight=0.2)),
        ("kto", retraining_set(2, weight=0.2)),
        ("sft", retraining_set(2, chosen=["a", "b"], rejected=["b", "a"])),
    ],
)
def test_rows_without_a_training_example_are_refused_before_the_start(tmp_path, strategy, rows):
    params = PARAMS.model_copy(update={"min_pairs": 1})
    with pytest.raises(NotEnoughVotes, match="None of 2 rows of the retraining set gives"):
        train_candidate(strategy, tmp_path / "none", rows, tmp_path, params)


@pytest.mark.parametrize("n_parts", [1, 4])
def test_kto_needs_two_rows_per_part(tmp_path, n_parts):
    params = PARAMS.model_copy(update={"batch_size": n_parts, "gradient_accumulation": n_parts})
    with pytest.raises(ConfigurationError, match=f"batch_size {n_parts} in {n_parts} parts gives"):
        train_candidate("kto", tmp_path / "none", retraining_set(20), tmp_path, params)

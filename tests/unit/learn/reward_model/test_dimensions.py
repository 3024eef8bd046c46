"""Heads of the rubric's dimensions, in a world where the truth in each dimension is known."""

import json

import numpy as np
import pandas as pd
import pytest

from rlhf_pipeline.learn.reward_model import (
    EmbeddingParams,
    EmbeddingRewardModel,
    LearningData,
    RewardModelReport,
    fit_reward_model,
    load_reward_model,
    reward_model_params,
)
from tests.unit.learn.reward_model.judged_dimensions import TRUTH, judged_pairs, true_scores
from tests.unit.learn.reward_model.word_pairs import WORDS, WordEncoder

FEW = {"l2_grid": [0.03, 0.3], "context_penalty_grid": [3.0]}


def keep_votes(pairs: pd.DataFrame, dimension: str, n: int) -> pd.DataFrame:
    """`pairs` of which only the first `n` of the train split are judged in `dimension`."""
    dropped = pairs.index[pairs["split"] == "train"][n:].union(
        pairs.index[pairs["split"] != "train"]
    )
    texts = pairs["dimension_votes"].astype(object)
    for row in dropped:
        counts = json.loads(texts[row])
        del counts[dimension]
        texts[row] = json.dumps(counts)
    return pairs.assign(dimension_votes=texts)


@pytest.fixture(scope="module")
def pairs() -> pd.DataFrame:
    return judged_pairs()


@pytest.fixture(scope="module")
def fitted(pairs):
    return fit_reward_model(
        LearningData(pairs), reward_model_params(**FEW, n_resamples=200), encoder=WordEncoder()
    )


def test_each_head_correlates_most_with_its_dimension(fitted):
    """On texts that nobody judged; the score of all does not tell the dimensions apart."""
    rng = np.random.default_rng(99)
    texts = [" ".join(rng.choice(WORDS, 3, replace=False)) + f" new {i}" for i in range(400)]
    prompts = ["ask"] * len(texts)
    scores = fitted.model.dimension_scores(prompts, texts)
    truths = {name: true_scores(texts, name) for name in TRUTH}
    assert set(scores) == set(TRUTH)
    overall = fitted.model.score(prompts, texts)
    for name, head_scores in scores.items():
        with_truth = {
            other: np.corrcoef(head_scores, truth)[0, 1] for other, truth in truths.items()
        }
        others = [value for other, value in with_truth.items() if other != name]
        assert with_truth[name] > 0.85, with_truth
        assert with_truth[name] > max(others) + 0.4, with_truth
        assert with_truth[name] > np.corrcoef(overall, truths[name])[0, 1] + 0.2


def test_the_report_has_each_heads_accuracy_beside_its_ceiling(fitted, pairs):
    report = fitted.report
    assert [head.dimension for head in report.dimensions] == sorted(TRUTH)
    n_test = int((pairs["split"] == "test").sum())
    for head in report.dimensions:
        assert head.n_train == report.n_train
        assert head.vote_accuracy.n == 3 * n_test
        assert 0.6 < head.vote_accuracy.value <= head.ceiling.high
        assert head.beats_chance
        metrics = report.metrics()
        assert metrics[f"test_vote_accuracy_in_{head.dimension}"] == head.vote_accuracy.value
        assert metrics[f"noise_ceiling_in_{head.dimension}"] == head.ceiling.value
    assert f"helpful {report.dimensions[1].vote_accuracy} of votes" in report.dimension_note
    assert RewardModelReport.from_json(report.model_dump_json()) == report


def test_a_head_of_random_votes_does_not_beat_chance(pairs):
    rng = np.random.default_rng(1)
    noise = [json.dumps({"style": [int(k), 3 - int(k)]}) for k in rng.integers(0, 4, len(pairs))]
    report = fit_reward_model(
        LearningData(pairs.assign(dimension_votes=noise)),
        reward_model_params(**FEW, n_resamples=200),
        encoder=WordEncoder(),
    ).report
    assert [head.beats_chance for head in report.dimensions] == [False]


def test_dimension_with_few_judged_pairs_has_no_head(pairs):
    few = keep_votes(pairs, "style", 20)
    params = EmbeddingParams(**FEW, min_dimension_pairs=21)
    train = few[few["split"] == "train"]
    model = EmbeddingRewardModel(params, WordEncoder()).fit(train)
    assert list(model.dimension_scores(["ask"], ["kind"])) == ["correct", "helpful"]
    enough = params.model_copy(update={"min_dimension_pairs": 20})
    assert "style" in EmbeddingRewardModel(enough, WordEncoder()).fit(train).dimension_heads_
    report = fit_reward_model(LearningData(few), model=EmbeddingRewardModel(params, WordEncoder()))
    style = report.report.dimensions[-1]
    assert (style.n_train, style.has_head, style.vote_accuracy) == (20, False, None)
    assert "style has no head, 20 training pairs are judged in it" in report.report.dimension_note


def test_heads_are_saved_with_the_model_and_leave_its_score_alone(fitted, pairs, tmp_path):
    fitted.model.save(tmp_path / "model")
    loaded = load_reward_model(tmp_path / "model", encoder=WordEncoder())
    texts = ["kind right", "curt wrong long"]
    for name, scores in fitted.model.dimension_scores(["q"] * 2, texts).items():
        np.testing.assert_array_equal(loaded.dimension_scores(["q"] * 2, texts)[name], scores)
    assert loaded.weights_hash == fitted.model.weights_hash
    without = fit_reward_model(
        LearningData(pairs.drop(columns="dimension_votes")),
        reward_model_params(**FEW, n_resamples=200),
        encoder=WordEncoder(),
    )
    assert without.report.dimensions == ()
    assert without.report.dimension_note == ""
    assert without.model.weights_hash != fitted.model.weights_hash
    np.testing.assert_array_equal(
        without.model.score(["q"] * 2, texts), loaded.score(["q"] * 2, texts)
    )

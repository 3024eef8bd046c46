"""What a fit says of itself."""

import numpy as np
import pandas as pd
import pytest

from rlhf_pipeline.core.errors import ConfigurationError
from rlhf_pipeline.core.records import Interval
from rlhf_pipeline.feedback.votes import TasteChanges
from rlhf_pipeline.learn.reward_model import (
    EmbeddingRewardModel,
    LearningData,
    RewardModel,
    RewardModelReport,
    TransformerParams,
    find_warm_start_obstacle,
    fit_reward_model,
    launchpad_class,
    reward_model_params,
)
from rlhf_pipeline.learn.reward_model.kinds import SHARED
from rlhf_pipeline.learn.reward_model.training import DEFAULT_WEIGHT, WEIGHTS_TRIED
from tests.unit.learn.reward_model.word_pairs import WithCeilings, WordEncoder, make_pairs

FEW = {"l2_grid": [0.1], "context_penalty_grid": [3.0]}
CEILING = Interval(value=0.8, low=0.75, high=0.85, n=100)


class LikesLength(RewardModel):
    """A model of another kind, that learns nothing."""

    name = "likes_length"
    weights_hash = "likes length"

    def __init__(self):
        pass

    def fit(self, pairs, *, weights=None, warm_start=None, progress=None):
        self.n_fitted_on = len(pairs)
        return self

    def score(self, prompts, completions, *, progress=None):
        return np.array([float(len(c)) for c in completions])


def test_every_accuracy_has_a_ceiling():
    pairs = make_pairs(600)
    half = int(pairs["max_seq"].median())
    since = Interval(value=0.7, low=0.6, high=0.8, n=40)
    ceilings = {"ceiling": CEILING, "ceiling_since_change": since}
    report = fit_reward_model(
        WithCeilings(pairs, taste_changes=TasteChanges(half), **ceilings),
        reward_model_params(**FEW),
        encoder=WordEncoder(),
    ).report
    assert report.test.ceiling == CEILING
    assert report.test_since_change.ceiling == since
    assert (report.metrics()["noise_ceiling"], report.metrics()["noise_ceiling_since_change"]) == (
        CEILING.value,
        since.value,
    )
    assert RewardModelReport.from_json(report.model_dump_json()) == report
    assert (
        fit_reward_model(
            LearningData(pairs), reward_model_params(**FEW), encoder=WordEncoder()
        ).report.test.ceiling
        is None
    )


def test_every_accuracy_metric_has_its_ceiling_if_known():
    pairs = make_pairs(600)
    half = int(pairs["max_seq"].median())
    report = fit_reward_model(
        WithCeilings(pairs, ceiling=CEILING, taste_changes=TasteChanges(half)),
        reward_model_params(**FEW),
        encoder=WordEncoder(),
    ).report
    metrics = report.metrics()
    assert metrics["test_accuracy_since_change"] == report.test_since_change.accuracy.value
    assert metrics["n_train"] == report.n_train
    # nobody knows it: that of all votes is not it
    assert "noise_ceiling_since_change" not in metrics
    assert all(isinstance(value, float) for value in metrics.values())
    untested = fit_reward_model(
        LearningData(pairs[pairs["split"] == "train"]),
        reward_model_params(**FEW),
        encoder=WordEncoder(),
    ).report
    assert set(untested.metrics()) == {"n_train", "n_before_change", "weight_before_change"}


def test_any_kind_of_model_can_be_passed():
    pairs, model = make_pairs(), LikesLength()
    fitted = fit_reward_model(
        WithCeilings(
            pairs, ceiling=CEILING, taste_changes=TasteChanges(int(pairs["max_seq"].median()))
        ),
        model=model,
    )
    assert fitted.model is model
    assert model.n_fitted_on == fitted.report.n_train == (pairs["split"] == "train").sum()
    assert (
        fitted.report.kind,
        fitted.report.l2,
        fitted.report.encoder_hash,
    ) == ("likes_length", None, None)
    test = fitted.report.test
    assert test.accuracy == test.longer_wins
    assert test.over_longer.value == test.over_longer.low == 0
    assert "not surely better than length" in test.describe()


def test_model_better_than_length_has_no_warning():
    report = fit_reward_model(
        LearningData(make_pairs()), reward_model_params(**FEW), encoder=WordEncoder()
    ).report
    assert report.test.over_longer.low > 0
    assert "not surely" not in report.test.describe()


def test_transformer_adds_its_own_parameters():
    own = {"max_tokens": 64, "steps": 7, "trainer": {"max_grad_norm": 0.5}}
    params = reward_model_params(kind="transformer", seed=7, fine_tuning=own)
    trainer = params.kind_params()
    assert {name: getattr(trainer, name) for name in own} == own
    assert trainer.seed == 7
    section = set(type(params.fine_tuning).model_fields)
    assert set(TransformerParams.model_fields) == section | SHARED
    assert not section & set(launchpad_class().model_fields)  # each stands in one place
    assert params.to_report() == trainer.model_dump(mode="json") | {
        "kind": "transformer",
        "weight_before_change": None,
        "allow_mixed_annotators": False,
        "n_resamples": 1000,
    }
    assert "fine_tuning" not in reward_model_params().to_report()
    assert "l2_grid" in reward_model_params().to_report()
    with pytest.raises(ConfigurationError, match="max_sentences"):
        reward_model_params(kind="transformer", max_sentences=5).kind_params()


def test_an_obstacle_to_a_warm_start_is_explained():
    model, other = (EmbeddingRewardModel(encoder=WordEncoder(name)) for name in ("one", "other"))
    assert find_warm_start_obstacle(model, EmbeddingRewardModel(encoder=WordEncoder("one"))) is None
    assert find_warm_start_obstacle(model, other) == "its encoder is one, now it is other"
    assert find_warm_start_obstacle(model, LikesLength()) == "it is of kind embedding"


CHANGE = 10_000  # vote seq


def changed(n_new=80, n_prompts=None, **new):
    """200 pairs from before a change of taste and `n_new` since, of `n_prompts` prompts, all in the
    train split.
    """
    since = make_pairs(n_new, seed=4, liked="sourced")
    since["max_seq"] += CHANGE
    if n_prompts is not None:
        since["prompt_id"] = [f"new{i % n_prompts}" for i in range(n_new)]
    return pd.concat([make_pairs(200, seed=3), since.assign(**new)], ignore_index=True).assign(
        split="train"
    )


def weighed(pairs, **params):
    chosen = {"l2_grid": [0.1, 1.0], "context_penalty_grid": [3.0]} | params
    report = fit_reward_model(
        LearningData(pairs, taste_changes=TasteChanges(CHANGE)),
        reward_model_params(**chosen),
        encoder=WordEncoder(),
    ).report
    assert all(np.isfinite(loss) for loss in report.weights_tried.values())
    assert RewardModelReport.from_json(report.model_dump_json()) == report
    return report


@pytest.mark.parametrize("n_prompts", [1, 5])
def test_too_few_new_prompts_cannot_choose_the_weight(n_prompts):
    report = weighed(changed(n_prompts=n_prompts))
    assert (report.weight_before_change, report.weights_tried) == (DEFAULT_WEIGHT, {})
    assert f"80 pairs of {n_prompts} prompts voted on since the change" in report.weight_reason
    assert "not chosen" in report.weight_reason


def test_a_chosen_weight_names_its_evidence():
    report = weighed(changed(n_new=150))
    assert set(report.weights_tried) == {f"{weight:g}" for weight in WEIGHTS_TRIED}
    assert report.weight_reason.startswith("least log loss on 150 pairs of 75 prompts")
    assert weighed(changed(), weight_before_change=0.3).weight_reason == "set by hand"
    assert (
        fit_reward_model(
            LearningData(make_pairs()), reward_model_params(**FEW), encoder=WordEncoder()
        ).report.weight_reason
        == ""
    )

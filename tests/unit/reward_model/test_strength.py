"""What strength as a margin did is told beside the same fit without it, on prompts left out of the
train split.
"""

import numpy as np
import pytest

from rlhf_pipeline.records import Interval
from rlhf_pipeline.reward_model import (
    EmbeddingRewardModel,
    fit_reward_model,
    reward_model_params,
)
from rlhf_pipeline.reward_model.embedding import EmbeddingParams
from rlhf_pipeline.reward_model.evaluation import measure_margin_effect
from tests.unit.reward_model.word_pairs import WithCeilings, WordEncoder, make_pairs

GRID = {"l2_grid": [0.1], "context_penalty_grid": [3.0], "min_pairs": 10}
CEILING = Interval(value=0.9, low=0.85, high=0.95, n=100)


def model(**more):
    params = EmbeddingParams(loss="margin", **GRID, **more)
    return EmbeddingRewardModel(params, WordEncoder())


def torn(n=300):
    """Two of five feel strongly that `kind` is better than `curt`, three slightly the other way
    round.
    """
    pairs = make_pairs(n).assign(prompt=[f"ask {i}" for i in range(n)], n_votes=1, agreement=1.0)
    strongly = np.arange(n) % 5 < 2
    kind, curt = ([f"{word} {i}" for i in range(n)] for word in ("kind", "curt"))
    return pairs.assign(
        prompt_id=[f"p{i}" for i in range(n)], split="train", chosen=np.where(strongly, kind, curt),
        rejected=np.where(strongly, curt, kind), margin=np.where(strongly, 1.0, 0.0),
    )  # fmt: skip


def test_a_margin_that_costs_votes_is_reported():
    effect = measure_margin_effect(torn(), model(margin_scale=10.0), ceiling=CEILING)
    assert effect.without.value == pytest.approx(0.6, abs=0.02)
    assert effect.gain.value == pytest.approx(effect.with_margin.value - effect.without.value)
    assert effect.gain.high < 0
    assert str(effect).startswith("strength as margin: -")
    assert "ceiling 0.900 [0.850, 0.950]" in str(effect)


def test_a_scale_of_nothing_gains_nothing_either_way():
    effect = measure_margin_effect(torn(), model(margin_scale=0.0))
    assert effect.gain.value == 0
    assert effect.gain.low == -effect.gain.high < 0
    assert "ceiling unknown" in str(effect)


def test_pairs_that_weigh_nothing_teach_neither():
    pairs, loud = torn(), torn()["margin"].to_numpy() > 0
    effect = measure_margin_effect(
        pairs, model(margin_scale=10.0), weights=np.where(loud, 1.0, 0.0)
    )
    assert effect.without.value == effect.with_margin.value == pytest.approx(0.4)


@pytest.mark.parametrize(
    "pairs",
    [torn().assign(margin=0.0), torn().assign(agreement=0.5), torn(12)],
    ids=["no strength", "no majority", "too few"],
)
def test_without_data_no_figure_is_given(pairs):
    assert measure_margin_effect(pairs, model()) is None


def test_the_report_of_the_loss_margin_alone_has_it():
    pairs = make_pairs(400)

    def report(loss):
        fit = reward_model_params(loss=loss, n_resamples=100, **GRID)
        return fit_reward_model(
            WithCeilings(pairs, ceiling=CEILING),
            fit,
            encoder=WordEncoder(),
            record=lambda opening: None,
        ).report

    told, other = report("margin"), report("bradley_terry")
    assert other.margin is None
    assert "strength" not in other.summary
    assert told.margin.ceiling == CEILING
    assert told.margin.n == ((pairs["split"] == "train") & (pairs["agreement"] > 0.5)).sum()
    assert str(told.margin) in told.summary

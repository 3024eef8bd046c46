"""Wilson's interval and the bootstrap: they cover what they claim and never claim certainty."""

import numpy as np
import pandas as pd
import pytest

from rlhf_pipeline.core.errors import InvalidScores, NotEnoughData
from rlhf_pipeline.core.intervals import (
    BootstrapParams,
    interval_of_mean,
    interval_of_ratio,
    interval_of_share,
    mean_over_prompts,
)


def by_prompt(values: object) -> pd.DataFrame:
    x = np.asarray(values, dtype=float)
    return pd.DataFrame({"prompt_id": [f"p{i:04d}" for i in range(len(x))], "x": x})


@pytest.mark.parametrize(
    ("share", "n", "low", "high"),
    [
        (0.5, 100, 0.4038, 0.5962),
        (0.0, 10, 0.0, 0.2775),
        (1.0, 10, 0.7225, 1.0),
        (0.1, 50, 0.0435, 0.2136),
    ],
)
def test_interval_of_a_share_is_wilson(share, n, low, high):
    interval = interval_of_share(share, n)
    assert (interval.value, interval.n) == (share, n)
    assert (interval.low, interval.high) == (
        pytest.approx(low, abs=1e-4),
        pytest.approx(high, abs=1e-4),
    )


def test_an_empty_sample_has_no_share():
    with pytest.raises(NotEnoughData, match="0 values"):
        interval_of_share(0.0, 0)


def test_intervals_have_nominal_coverage():
    rng = np.random.default_rng(1)
    covered = 0
    for _ in range(200):
        by_group = rng.normal(0.0, 1.0, size=60)
        values = np.repeat(by_group, 5) + rng.normal(0.0, 0.3, size=300)
        interval = interval_of_mean(
            values, groups=np.repeat(np.arange(60), 5), params=BootstrapParams(n_resamples=300)
        )
        covered += interval.low <= 0 <= interval.high
    assert 0.90 <= covered / 200 <= 0.99


def test_equal_shares_in_all_groups_give_wilson_ends():
    """Three of four right in each of ten prompts: so it is in every resample, which is no
    certainty.
    """
    right, prompts = np.tile([1.0, 1.0, 1.0, 0.0], 10), np.repeat(np.arange(10), 4)
    interval = interval_of_mean(right, groups=prompts)
    assert (interval.value, interval.n) == (0.75, 40)
    # of 7.5 of 10
    assert (interval.low, interval.high) == (
        pytest.approx(0.4422, abs=1e-4),
        pytest.approx(0.9190, abs=1e-4),
    )
    of_many = interval_of_mean(np.tile(right, 100), groups=np.repeat(np.arange(1000), 4))
    assert 0.7 < of_many.low < 0.75 < of_many.high < 0.8
    one_differs = interval_of_mean(np.append(right[:-1], 1.0), groups=prompts)
    assert one_differs.low < one_differs.value < one_differs.high


def test_nan_and_empty_input_are_refused():
    with pytest.raises(InvalidScores, match="NaN"):
        interval_of_mean([0.1, float("nan")])
    with pytest.raises(NotEnoughData):
        interval_of_mean([])


def test_an_interval_over_prompts_has_its_nominal_coverage():
    rng = np.random.default_rng(0)
    covered = [
        interval.low <= 0.6 <= interval.high
        for interval in (
            mean_over_prompts(
                by_prompt(rng.binomial(1, 0.6, size=200)), "x", seed=i, n_resamples=300
            )
            for i in range(200)
        )
    ]
    assert 0.9 <= np.mean(covered) <= 0.99


def test_the_same_seed_gives_the_same_interval():
    frame = by_prompt(np.random.default_rng(1).normal(size=50))
    assert mean_over_prompts(frame, "x", seed=3) == mean_over_prompts(frame, "x", seed=3)
    assert mean_over_prompts(frame, "x", seed=3) != mean_over_prompts(frame, "x", seed=4)


def test_samples_of_one_prompt_count_as_one_observation():
    frame = pd.DataFrame({"prompt_id": ["a"] * 10 + ["b"], "x": [1.0] * 10 + [0.0]})
    interval = mean_over_prompts(frame, "x", seed=0)
    assert (interval.value, interval.n) == (0.5, 2)


def test_a_ratio_of_shares_has_an_interval_that_covers() -> None:
    rng = np.random.default_rng(0)
    intervals = [
        interval_of_ratio(rng.binomial(60, 0.4) / 60, 60, rng.binomial(400, 0.2) / 400, 400)
        for _ in range(2000)
    ]
    assert np.mean([i is not None and i.low <= 2 <= i.high for i in intervals]) == pytest.approx(
        0.95, abs=0.015
    )

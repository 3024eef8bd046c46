"""Calibration of the two windows is measured alike, and not at all on too little."""

import numpy as np
import pandas as pd

from rlhf_pipeline.watch.drift.reference import Window
from rlhf_pipeline.watch.drift.reliability import reliability_of_day, reliability_of_reference


def votes(n: int = 400, *, confident: float = 1.0, seed: int = 0) -> pd.DataFrame:
    """Votes on comparisons of their own; stated log odds are `confident` times the true ones."""
    rng = np.random.default_rng(seed)
    odds = rng.normal(0, 1.2, size=n)
    outcome = (rng.random(n) < 1 / (1 + np.exp(-odds))).astype(float)
    return pd.DataFrame(
        {
            "p": 1 / (1 + np.exp(-confident * odds)),
            "outcome": outcome,
            "group": [f"c{i:04d}" for i in range(n)],
        }
    )


def as_window(errors: pd.DataFrame) -> Window:
    error = np.where(errors["p"] > 0.5, 1 - errors["outcome"], errors["outcome"])
    rows = pd.DataFrame(
        {"comparison_id": errors["group"], "p": errors["p"], "error": error, "n_votes": 1}
    )
    return Window("demo.reward_model@1", rows, np.zeros((0, 0)))


def test_a_window_and_its_votes_are_equally_reliable() -> None:
    day_votes = votes()
    assert reliability_of_reference(as_window(day_votes)) == reliability_of_day(day_votes)


def test_overconfident_slope_is_below_one() -> None:
    good, bad = reliability_of_day(votes(2000)), reliability_of_day(votes(2000, confident=3))
    assert good.slope is not None
    assert good.slope.low < 1 < good.slope.high
    assert bad.slope is not None
    assert bad.slope.high < 0.6
    assert good.ece is not None
    assert bad.ece is not None
    assert bad.ece.low > good.ece.value + 0.05
    assert bad.ece_lower_bound > 0 > good.ece_lower_bound


def test_a_model_that_never_takes_sides_has_no_slope() -> None:
    assert reliability_of_day(votes().assign(p=0.5)).slope is None

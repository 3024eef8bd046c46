"""Which fitted reward models may not become champion: too weak, or less accurate than the champion
on the latest votes.

Both rules read pairs of the calib split: what serves is chosen there, and the test split only
measures the choice.
"""

import numpy as np
import numpy.typing as npt
import pandas as pd
from pydantic import Field

from rlhf_pipeline.intervals import BootstrapParams, interval_of_mean
from rlhf_pipeline.records import Interval
from rlhf_pipeline.reward_model.base import Floats
from rlhf_pipeline.reward_model.held_out_evaluation import length_gaps, wins


class AcceptanceParams(BootstrapParams):
    """When a fitted reward model is refused."""

    min_compared_pairs: int = Field(
        default=20,
        ge=1,
        description="Held-out pairs with a majority below which no reward model is refused for its "
        "accuracy",
    )
    window_pairs: int = Field(
        default=200,
        ge=1,
        description="Latest held-out pairs on which a reward model must not be less accurate than "
        "the champion",
    )


def find_weakness(
    pairs: pd.DataFrame, margins: Floats, ceiling: Interval | None, params: AcceptanceParams
) -> str | None:
    """Why a model is too weak to serve, or None.

    It is where the interval of its accuracy minus that of preferring the longer completion, on the
    same pairs, lies below 0, or the upper bound of its accuracy below half-way between 0.5 and the
    lower bound of the noise ceiling. `margins` are chosen - rejected of `pairs`; without a ceiling
    the second rule is silent.
    """
    decided, margins = pairs[_has_majority(pairs)], margins[_has_majority(pairs)]
    if len(decided) < params.min_compared_pairs:
        return None
    right, longer = wins(margins), wins(length_gaps(decided))
    accuracy, advantage = (
        _mean_interval(right, decided, params),
        _mean_interval(right - longer, decided, params, of_shares=False),
    )
    told = f"accuracy {accuracy} on {len(decided)} held-out pairs is"
    found = []
    if advantage.high < 0:
        found.append(
            f"{told} below {longer.mean():.3f} of preferring the longer completion (difference "
            f"{advantage})"
        )
    least = None if ceiling is None else (0.5 + ceiling.low) / 2
    if least is not None and accuracy.high < least:
        found.append(
            f"{told} below {least:.3f}, half-way between a coin and the noise ceiling {ceiling}"
        )
    return "; ".join(found) or None


def find_regression(
    pairs: pd.DataFrame, margins: Floats, champion_margins: Floats, params: AcceptanceParams
) -> str | None:
    """Why a model is worse than the champion on the latest window, or None.

    It is where the interval of its accuracy minus the champion's, on the same latest `window_pairs`
    pairs, lies below 0. With fewer than `min_compared_pairs` pairs nothing is said.
    """
    difference = _accuracy_difference(pairs, margins, champion_margins, params)
    if difference is None or difference.high >= 0:
        return None
    return (
        f"accuracy on the latest {difference.n} held-out pairs is below that of the champion "
        f"(difference {difference})"
    )


def is_improvement(
    pairs: pd.DataFrame, margins: Floats, champion_margins: Floats, params: AcceptanceParams
) -> bool:
    """Whether the interval of the accuracy minus the champion's, on the latest window, lies above
    0.
    """
    difference = _accuracy_difference(pairs, margins, champion_margins, params)
    return difference is not None and difference.low > 0


def _accuracy_difference(
    pairs: pd.DataFrame, margins: Floats, champion_margins: Floats, params: AcceptanceParams
) -> Interval | None:
    """Accuracy minus the champion's on the latest pairs with a majority; None where they are too
    few.
    """
    order = np.argsort(pairs["max_seq"].to_numpy(), kind="stable")
    latest = order[_has_majority(pairs)[order]][-params.window_pairs :]
    if len(latest) < params.min_compared_pairs:
        return None
    return _mean_interval(
        wins(margins[latest]) - wins(champion_margins[latest]),
        pairs.iloc[latest],
        params,
        of_shares=False,
    )


def _has_majority(pairs: pd.DataFrame) -> npt.NDArray[np.bool_]:
    return np.asarray(pairs["agreement"] > 0.5)


def _mean_interval(
    values: Floats, pairs: pd.DataFrame, params: AcceptanceParams, *, of_shares: bool = True
) -> Interval:
    """With its interval over prompts: pairs of one prompt resemble each other."""
    return interval_of_mean(
        values, groups=pairs["prompt_id"].to_numpy(), params=params, of_shares=of_shares
    )

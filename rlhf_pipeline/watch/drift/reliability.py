"""Compares the reliability of stated probabilities in the reference window and on the day."""

from dataclasses import dataclass
from typing import Any

import numpy as np
import pandas as pd

from rlhf_pipeline.core.errors import NotEnoughData
from rlhf_pipeline.core.records import Interval, ReliabilityBin
from rlhf_pipeline.learn.calibration.day_tests import CalibrationThresholds
from rlhf_pipeline.learn.calibration.monitoring import ece_lower_bound
from rlhf_pipeline.learn.calibration.slope import calibration_slope
from rlhf_pipeline.learn.calibration.summary import calibration_metrics, reliability_table
from rlhf_pipeline.watch.drift.reference import Window


@dataclass(frozen=True)
class Reliability:
    """Calibration of one window, over groups of comparisons. `slope` is None if every probability
    is 0.5, or if all votes agree with the model or all disagree.
    """

    n: int
    bins: tuple[ReliabilityBin, ...]
    slope: Interval | None
    binned_gap: Interval
    ece: Interval | None
    ece_lower_bound: float
    brier: Interval


def reliability_of_reference(
    window: Window, thresholds: CalibrationThresholds | None = None
) -> Reliability:
    """One row per comparison, weighted by its votes. Raises NotEnoughData below `min_rows`."""
    rows = window.rows
    p, error = rows["p"].to_numpy(dtype=float), rows["error"].to_numpy(dtype=float)
    # `error` is the share of votes against the side predicted
    outcome = np.where(p > 0.5, 1 - error, error)
    weights = rows["n_votes"].to_numpy(dtype=float)
    return _measure_reliability(
        "reference", p, outcome, rows["comparison_id"].to_numpy(), weights, thresholds
    )


def reliability_of_day(
    predictions: pd.DataFrame, thresholds: CalibrationThresholds | None = None
) -> Reliability:
    """Columns `p`, `outcome`, `group` of single votes, as in the calibration tests. Raises
    NotEnoughData below `min_rows`.
    """
    return _measure_reliability(
        "day",
        predictions["p"].to_numpy(),
        predictions["outcome"].to_numpy(),
        predictions["group"].to_numpy(),
        None,
        thresholds,
    )


def _measure_reliability(
    name: str,
    p: Any,
    outcome: Any,
    groups: Any,
    weights: Any,
    thresholds: CalibrationThresholds | None,
) -> Reliability:
    needed = (thresholds or CalibrationThresholds()).min_rows
    if len(p) < needed:
        raise NotEnoughData(
            f"The {name} has {len(p)} judged predictions; {needed} are needed to judge "
            "calibration. Collect more votes."
        )
    measured = calibration_metrics(p, outcome, weights=weights, groups=groups)
    try:
        slope = calibration_slope(p, outcome, weights=weights, groups=groups)
    except NotEnoughData:
        slope = None
    return Reliability(
        n=len(p),
        bins=reliability_table(p, outcome, weights=weights, groups=groups),
        slope=slope,
        binned_gap=measured.binned_gap,
        ece=measured.ece,
        ece_lower_bound=ece_lower_bound(p, outcome, weights=weights, groups=groups),
        brier=measured.brier,
    )

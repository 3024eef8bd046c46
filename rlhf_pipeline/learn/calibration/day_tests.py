"""Tests a day's predictions on quantities with a known error rate: see monitoring."""

from typing import Any, TypedDict

from pydantic import Field

from rlhf_pipeline.core.errors import NotEnoughData
from rlhf_pipeline.core.parameters import Parameters
from rlhf_pipeline.learn.calibration.metrics import FoldedRows
from rlhf_pipeline.learn.calibration.monitoring import ece_lower_bound, overconfidence_p_value
from rlhf_pipeline.learn.calibration.slope import slope_bounds

SLOPE_UPPER, OVERCONFIDENCE = "calibration_slope_upper", "calibration_slope_p_value"
LOWER_BOUND = "ece_lower_bound"


class CalibrationThresholds(Parameters):
    """When a day's predictions count as badly calibrated. Each test is wrong about a good model on
    about 2.5 % of days at most.
    """

    slope_at_least: float = Field(
        default=0.8,
        ge=0,
        le=1,
        description="Fails if even the upper end of the slope's 95 % interval is below this "
        "value; 1 tests perfection",
    )
    slope_level: float = Field(
        default=0.025,
        gt=0,
        lt=0.5,
        description="Level of the one-sided test, on the latest `slope_rows`, that the slope is "
        "below 1 (overconfident)",
    )
    slope_rows: int = Field(
        default=200,
        ge=50,
        description="Most voted predictions of that test; a fixed number, so that a busy day "
        "fires no sooner",
    )
    ece_at_most: float = Field(
        default=0.05,
        ge=0,
        le=0.5,
        description="Fails if even the lower bound (97.5 %) of the ECE is above this value",
    )
    min_rows: int = Field(default=50, ge=10, description="Fewest voted predictions to test at all")


class CalibrationTest(TypedDict):
    """One test of a day as plain data."""

    name: str
    passed: bool
    value: float
    threshold: float


def run_calibration_tests(
    p: Any, outcomes: Any, groups: Any, thresholds: CalibrationThresholds | None = None
) -> list[CalibrationTest]:
    """The tests of `evidently_calibration_report`, which takes ten times as long: it also draws.

    One stated probability of a, outcome (1 where a was preferred) and group per vote, in vote
    order. Raises NotEnoughData below `min_rows`, InvalidScores for NaN or infinite values.
    """
    thresholds = thresholds or CalibrationThresholds()
    require_rows(len(p), thresholds)
    latest = slice(-thresholds.slope_rows, None)
    values = {
        SLOPE_UPPER: slope_bounds(FoldedRows.from_predictions(p, outcomes, groups=groups))[1],
        OVERCONFIDENCE: overconfidence_p_value(p[latest], outcomes[latest], groups=groups[latest]),
        LOWER_BOUND: ece_lower_bound(p, outcomes, groups=groups),
    }
    return [
        CalibrationTest(
            name=name,
            passed=values[name] <= limit if name == LOWER_BOUND else values[name] >= limit,
            value=values[name],
            threshold=limit,
        )
        for name, limit in list_limits(thresholds).items()
    ]


def list_limits(thresholds: CalibrationThresholds) -> dict[str, float]:
    """The limit of each tested quantity: the highest value that passes of the ECE's lower bound,
    the lowest one of the others.
    """
    return {
        SLOPE_UPPER: thresholds.slope_at_least,
        OVERCONFIDENCE: thresholds.slope_level,
        LOWER_BOUND: thresholds.ece_at_most,
    }


def require_rows(n: int, thresholds: CalibrationThresholds) -> None:
    """Raises NotEnoughData below `min_rows`."""
    if n < thresholds.min_rows:
        raise NotEnoughData(
            f"{n} voted predictions to test calibration on; {thresholds.min_rows} needed. Wait for "
            "more votes."
        )

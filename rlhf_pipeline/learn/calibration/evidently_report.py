"""The one Evidently adapter of calibration: our ECE, Brier and slope as its metrics and tests.

Evidently has no calibration metric but log loss, and its tests need a number with a known error
rate: see monitoring.
"""

import json
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from typing import Any

import pandas as pd

from rlhf_pipeline.core.errors import FrameError
from rlhf_pipeline.core.records import Interval
from rlhf_pipeline.learn.calibration import metrics
from rlhf_pipeline.learn.calibration.day_tests import (
    LOWER_BOUND,
    OVERCONFIDENCE,
    SLOPE_UPPER,
    CalibrationTest,
    CalibrationThresholds,
    list_limits,
    require_rows,
)
from rlhf_pipeline.learn.calibration.group_calibration import UNKNOWN_CEILING
from rlhf_pipeline.learn.calibration.monitoring import ece_lower_bound, overconfidence_p_value
from rlhf_pipeline.learn.calibration.slope import all_agree, fit_slope, slope_bounds
from rlhf_pipeline.learn.calibration.summary import reliability_table

SLOPE = "calibration_slope"
RELIABILITY_QUANTITY = "binned_gap"  # the metric that renders charts and tables


@dataclass(frozen=True)
class EvidentlyResult:
    """`json` is small and for keeping; `html()` renders 3.7 MB, so only on request."""

    json: dict[str, Any]
    tests: list[CalibrationTest]
    values: dict[str, float]
    html: Callable[[], bytes]

    @property
    def passed(self) -> bool:
        return all(test["passed"] for test in self.tests)


def _slope_upper(frame: pd.DataFrame) -> float:
    """It exists even if every vote went against the model, which is when it matters."""
    return slope_bounds(_rows(frame))[1]


def _slope(frame: pd.DataFrame) -> float:
    return fit_slope(_rows(frame))


def _rows(frame: pd.DataFrame) -> metrics.FoldedRows:
    return metrics.FoldedRows.from_predictions(
        frame["p"], frame["outcome"], groups=frame["group"].to_numpy()
    )


def _lower_bound(frame: pd.DataFrame) -> float:
    return ece_lower_bound(frame["p"], frame["outcome"], groups=frame["group"].to_numpy())


def _overconfidence(frame: pd.DataFrame, latest: int) -> float:
    part = frame.tail(latest)
    return overconfidence_p_value(part["p"], part["outcome"], groups=part["group"].to_numpy())


QUANTITIES: dict[str, Callable[[pd.DataFrame], float]] = {
    SLOPE: _slope,
    SLOPE_UPPER: _slope_upper,
    OVERCONFIDENCE: lambda frame: _overconfidence(frame, len(frame)),
    LOWER_BOUND: _lower_bound,
    "ece": lambda frame: metrics.ece(frame["p"], frame["outcome"]),
    "binned_gap": lambda frame: metrics.binned_gap(frame["p"], frame["outcome"]),
    "brier": lambda frame: metrics.brier(frame["p"], frame["outcome"]),
    "log_loss": lambda frame: metrics.log_loss(frame["p"], frame["outcome"]),
}


def evidently_calibration_report(
    rows: pd.DataFrame,
    thresholds: CalibrationThresholds | None = None,
    *,
    noise_ceiling: Interval | None = None,
) -> EvidentlyResult:
    """An Evidently report on the columns `p` (P(a preferred)), `outcome` (1 where a was) and,
    optionally, `group`.

    Rows come in the order of their votes, as the test of the latest needs. Rows of one group
    (comparison or prompt) are treated as correlated; without the column rows are independent.
    `noise_ceiling` is shown beside the accuracy.
    Raises NotEnoughData below `min_rows`, FrameError for a missing column, InvalidScores for NaN
    or infinite values.
    """
    thresholds = thresholds or CalibrationThresholds()
    prepared = _prepare(rows)
    require_rows(len(prepared), thresholds)
    snapshot = _run_evidently(prepared, thresholds, noise_ceiling)
    document = snapshot.dict()
    return EvidentlyResult(
        json=json.loads(snapshot.json()),
        tests=[_to_plain_test(test, document) for test in document["tests"]],
        values={m["config"]["quantity"]: float(m["value"]) for m in document["metrics"]},
        html=lambda: snapshot.get_html_str(as_iframe=False).encode(),
    )


def _prepare(frame: pd.DataFrame) -> pd.DataFrame:
    missing = sorted({"p", "outcome"} - set(frame.columns))
    if missing:
        raise FrameError(
            f"The calibration rows lack {missing}. They need p and outcome, and may have group."
        )
    if len(frame):
        metrics.FoldedRows.from_predictions(frame["p"], frame["outcome"])
    group = (
        frame["group"].astype(str)
        if "group" in frame
        else pd.Series([str(i) for i in range(len(frame))], index=frame.index)
    )
    columns = {
        "p": frame["p"].astype("float64"),
        "outcome": frame["outcome"].astype("float64"),
        "group": group,
    }
    return pd.DataFrame(columns).reset_index(drop=True)


def _run_evidently(
    rows: pd.DataFrame,
    thresholds: CalibrationThresholds,
    noise_ceiling: Interval | None,
) -> Any:
    from evidently import DataDefinition, Dataset, Report
    from evidently.tests import gte, lte

    metric = _metric_class()
    tests = {
        name: [lte(limit) if name == LOWER_BOUND else gte(limit)]
        for name, limit in list_limits(thresholds).items()
    }
    options: dict[str, dict[str, Any]] = {
        OVERCONFIDENCE: {"latest": thresholds.slope_rows},
        RELIABILITY_QUANTITY: {
            "noise_ceiling": None
            if noise_ceiling is None
            else [noise_ceiling.value, noise_ceiling.low, noise_ceiling.high],
            "ceiling_told": f"noise ceiling {noise_ceiling or UNKNOWN_CEILING}",
        },
    }
    definition = DataDefinition(numerical_columns=["p", "outcome"], categorical_columns=["group"])
    # there is no slope of votes that all agree
    quantities = [name for name in QUANTITIES if name != SLOPE or not all_agree(_rows(rows))]
    metrics_asked = [
        metric(quantity=name, tests=tests.get(name, []), **options.get(name, {}))
        for name in quantities
    ]
    return Report(metrics_asked).run(Dataset.from_pandas(rows, data_definition=definition))


@cache
def _metric_class() -> Any:
    """The metric class. Made once: Evidently binds a calculation to it and registers both by
    name.
    """
    from evidently.core.metric_types import SingleValueCalculation, SingleValueMetric

    class CalibrationQuantity(SingleValueMetric):  # type: ignore[misc]
        quantity: str
        latest: int | None = None
        noise_ceiling: list[float] | None = None
        ceiling_told: str = ""

        def measure(self, frame: pd.DataFrame) -> float:
            return (
                _overconfidence(frame, self.latest)
                if self.latest is not None
                else QUANTITIES[self.quantity](frame)
            )

    class CalibrationQuantityCalculation(
        SingleValueCalculation[CalibrationQuantity]  # type: ignore[misc]
    ):
        def calculate(self, context: Any, current_data: Any, reference_data: Any) -> Any:
            frame = current_data.as_dataframe()
            result = self.result(self.metric.measure(frame))
            if self.metric.quantity == RELIABILITY_QUANTITY:
                result.widget = [
                    _reliability_widget(frame, self.metric.noise_ceiling, self.metric.ceiling_told),
                ]
            return result, None

        def display_name(self) -> str:
            return str(self.metric.quantity).replace("_", " ")

    return CalibrationQuantity


def _reliability_widget(frame: pd.DataFrame, ceiling: list[float] | None, caption: str) -> Any:
    import plotly.graph_objects as go
    from evidently.legacy.renderers.html_widgets import plotly_figure

    bins = reliability_table(frame["p"], frame["outcome"], groups=frame["group"].to_numpy())
    figure = go.Figure(
        [
            go.Scatter(x=[0.5, 1], y=[0.5, 1], mode="lines", name="perfect", line={"dash": "dash"}),
            go.Scatter(
                x=[b.mean_confidence for b in bins],
                y=[b.accuracy for b in bins],
                text=[f"{b.n} rows" for b in bins],
                error_y={
                    "type": "data",
                    "array": [b.accuracy_high - b.accuracy for b in bins],
                    "arrayminus": [b.accuracy - b.accuracy_low for b in bins],
                },
                name="predictions",
            ),
        ]
    )
    if ceiling is not None:
        value, low, high = ceiling
        figure.add_hrect(y0=low, y1=high, line_width=0, fillcolor="green", opacity=0.1)
        figure.add_hline(y=value, line={"dash": "dot", "color": "green"}, annotation_text=caption)
    else:
        figure.add_annotation(
            text=caption, x=0.99, y=0.02, xref="paper", yref="paper", showarrow=False
        )
    figure.update_layout(xaxis_title="stated confidence", yaxis_title="share predicted right")
    return plotly_figure(title="Reliability", figure=figure)


def _to_plain_test(test: dict[str, Any], document: dict[str, Any]) -> CalibrationTest:
    metric_id = test["metric_config"]["metric_id"]
    metric = next(m for m in document["metrics"] if m["id"] == metric_id)
    return CalibrationTest(
        name=metric["config"]["quantity"],
        passed=test["status"].value == "SUCCESS",
        value=float(metric["value"]),
        threshold=float(test["test_config"]["threshold"]),
    )

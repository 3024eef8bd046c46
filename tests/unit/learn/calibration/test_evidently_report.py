import json

import numpy as np
import pandas as pd
import pytest

from rlhf_pipeline.core.errors import NotEnoughData
from rlhf_pipeline.core.records import Interval
from rlhf_pipeline.learn.calibration import (
    CalibrationThresholds,
    evidently_calibration_report,
    run_calibration_tests,
)
from rlhf_pipeline.learn.calibration.metrics import binned_gap, brier


def rows(sharpen: float, n: int = 400, seed: int = 0) -> pd.DataFrame:
    rng = np.random.default_rng(seed)
    logits = np.repeat(rng.normal(0, 1.5, n // 2), 2)
    outcome = (rng.random(n) < 1 / (1 + np.exp(-logits))).astype(float)
    return pd.DataFrame(
        {
            "p": 1 / (1 + np.exp(-sharpen * logits)),
            "outcome": outcome,
            "group": np.repeat(np.arange(n // 2), 2),
        }
    )


def test_our_metrics_are_in_evidentlys_report():
    frame = rows(1.0)
    result = evidently_calibration_report(frame)
    assert result.values["binned_gap"] == pytest.approx(binned_gap(frame["p"], frame["outcome"]))
    assert result.values["brier"] == pytest.approx(brier(frame["p"], frame["outcome"]))
    assert len(json.dumps(result.json)) < 200_000


TESTS = ["calibration_slope_upper", "calibration_slope_p_value", "ece_lower_bound"]


def test_a_calibrated_day_passes_and_an_overconfident_one_fails_all_tests():
    good, bad = evidently_calibration_report(rows(1.0)), evidently_calibration_report(rows(3.0))
    assert good.passed
    assert [(t["name"], t["passed"]) for t in bad.tests] == [(name, False) for name in TESTS]
    assert all((t["value"] < t["threshold"]) == (t["name"] != "ece_lower_bound") for t in bad.tests)


@pytest.mark.parametrize("sharpen", [1.0, 3.0])
def test_the_tests_without_a_report_are_those_of_the_report(sharpen):
    frame = rows(sharpen)
    tests = run_calibration_tests(frame["p"], frame["outcome"], frame["group"])
    assert tests == evidently_calibration_report(frame).tests
    with pytest.raises(NotEnoughData, match="40 voted predictions"):
        run_calibration_tests(*(frame[name][:40] for name in ("p", "outcome", "group")))


@pytest.mark.parametrize(
    ("right", "passed"), [(1.0, [True, True, False]), (0.0, [False, False, False])]
)
def test_unanimous_day_is_tested_without_a_slope(right, passed):
    frame = rows(1.0, 100)
    agreeing = frame.assign(outcome=np.where(frame["p"] > 0.5, right, 1 - right))
    result = evidently_calibration_report(agreeing)
    assert [t["passed"] for t in result.tests] == passed
    assert "calibration_slope" not in result.values
    json.dumps(result.json, allow_nan=False)
    assert "calibration_slope" in evidently_calibration_report(frame).values


def test_the_slope_is_tested_on_the_latest_rows_alone():
    before, lately = rows(1.0, 2000), rows(3.0, 200, seed=1)
    joined = pd.concat([before, lately.assign(group=lately["group"] + 10_000)], ignore_index=True)
    p_values = [
        {t["name"]: t["value"] for t in evidently_calibration_report(f).tests}[TESTS[1]]
        for f in (joined, lately)
    ]
    assert p_values[0] == p_values[1] < 0.001
    wide = evidently_calibration_report(joined, thresholds=CalibrationThresholds(slope_rows=2200))
    assert {t["name"]: t["value"] for t in wide.tests}[TESTS[1]] > p_values[0]


def test_html_report_has_reliability_diagram_and_ceiling():
    frame = rows(1.0)
    ceiling = Interval(value=0.81, low=0.777, high=0.85, n=50)
    result = evidently_calibration_report(frame, noise_ceiling=ceiling)
    html = result.html().decode()
    assert len(html) > 1_000_000
    for phrase in (
        "Reliability",
        "noise ceiling 0.810 [0.777, 0.850]",
    ):
        assert phrase in html
    drawn = next(
        m["config"] for m in result.json["metrics"] if m["config"]["quantity"] == "binned_gap"
    )
    assert drawn["noise_ceiling"] == [0.81, 0.777, 0.85]


def test_too_few_rows_are_not_a_verdict():
    with pytest.raises(NotEnoughData, match="10 voted predictions"):
        evidently_calibration_report(rows(1.0).head(10))
    with pytest.raises(NotEnoughData):
        evidently_calibration_report(rows(1.0).head(0))

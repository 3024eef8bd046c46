import json

import numpy as np
import pandas as pd
import pytest

from rlhf_pipeline.calibration import CalibrationThresholds, evidently_calibration_report
from rlhf_pipeline.calibration.metrics import brier, ece_equal_mass
from rlhf_pipeline.errors import FrameError, InvalidScores, NotEnoughData


def rows(sharpen: float, n: int = 400, seed: int = 0) -> pd.DataFrame:
    rng = np.random.default_rng(seed)
    logits = np.repeat(rng.normal(0, 1.5, n // 2), 2)
    outcome = (rng.random(n) < 1 / (1 + np.exp(-logits))).astype(float)
    return pd.DataFrame({"p": 1 / (1 + np.exp(-sharpen * logits)), "outcome": outcome, "group": np.repeat(np.arange(n // 2), 2)})


def test_our_metrics_are_in_evidentlys_report():
    frame = rows(1.0)
    result = evidently_calibration_report(frame, rows(1.0, seed=1))
    assert result.values["ece_equal_mass"] == pytest.approx(ece_equal_mass(frame["p"], frame["outcome"]))
    assert result.values["brier"] == pytest.approx(brier(frame["p"], frame["outcome"]))
    assert len(json.dumps(result.json)) < 200_000


def test_a_calibrated_day_passes_and_an_overconfident_one_fails_both_tests():
    good, bad = evidently_calibration_report(rows(1.0)), evidently_calibration_report(rows(3.0))
    assert good.passed
    assert [(t["name"], t["passed"]) for t in bad.tests] == [("calibration_slope_upper", False), ("ece_lower_bound", False)]
    assert all((t["value"] < t["threshold"]) == (t["name"] == "calibration_slope_upper") for t in bad.tests)


def test_only_quantities_with_a_threshold_are_tested_with_a_reference_too():
    result = evidently_calibration_report(rows(1.0), rows(1.0, seed=1), CalibrationThresholds(slope_at_least=0.5))
    assert [t["name"] for t in result.tests] == ["calibration_slope_upper", "ece_lower_bound"]
    assert result.tests[0]["threshold"] == 0.5


def test_html_is_rendered_on_demand_and_holds_the_reliability_diagram():
    html = evidently_calibration_report(rows(1.0)).html()
    assert len(html) > 1_000_000
    assert b"Reliability" in html


def test_too_few_rows_are_not_a_verdict():
    with pytest.raises(NotEnoughData, match="10 voted predictions"):
        evidently_calibration_report(rows(1.0).head(10))
    with pytest.raises(NotEnoughData):
        evidently_calibration_report(rows(1.0).head(0))


def test_nan_and_missing_columns_are_refused():
    frame = rows(1.0)
    frame.loc[3, "p"] = float("nan")
    with pytest.raises(InvalidScores):
        evidently_calibration_report(frame)
    with pytest.raises(FrameError, match="outcome"):
        evidently_calibration_report(rows(1.0)[["p"]])


def test_groups_are_optional():
    assert evidently_calibration_report(rows(1.0)[["p", "outcome"]]).passed

"""Measures how far the judge's stated probabilities hold on votes that it never saw."""

import pandas as pd

from rlhf_pipeline.core.records import CalibrationReport, Record
from rlhf_pipeline.learn.calibration import CalibrationThresholds, ece, ece_lower_bound
from rlhf_pipeline.watch.reflection import judged_predictions

NEWEST = 1000  # votes


class JudgeCalibration(Record):
    """ECE of a reward model on `n` rows `measured_on`, and what it surely exceeds; None below
    `n_needed` rows. `limit` is the highest accepted value of `low`.
    """

    reward_model: str
    measured_on: str
    n: int
    n_needed: int
    limit: float
    ece: float | None = None
    low: float | None = None


def measure_judge_calibration(
    reward_model: str,
    reflections: pd.DataFrame,
    report: CalibrationReport | None,
    thresholds: CalibrationThresholds,
) -> JudgeCalibration:
    """On the NEWEST votes of the REFLECTIONS of `reward_model`, by the same test as a day of the
    drift report. A model that was just fitted has too few: then on the held-out comparisons of its
    calibration `report`.
    """
    rows = judged_predictions(reflections).tail(NEWEST)
    measured = JudgeCalibration(
        reward_model=reward_model,
        measured_on="votes cast after it predicted them",
        n=len(rows),
        n_needed=thresholds.min_rows,
        limit=thresholds.ece_at_most,
    )
    if measured.n >= measured.n_needed:
        p, outcomes = rows["p"].to_numpy(), rows["outcome"].to_numpy()
        low = ece_lower_bound(p, outcomes, groups=rows["group"].to_numpy())
        return measured.model_copy(update={"ece": ece(p, outcomes), "low": low})
    if report is None or report.calibrated.n < measured.n_needed:
        return measured
    held_out = report.calibrated
    return measured.model_copy(
        update={
            "measured_on": "held-out comparisons",
            "n": held_out.n,
            "ece": held_out.ece.value,
            "low": held_out.ece.low,
        }
    )

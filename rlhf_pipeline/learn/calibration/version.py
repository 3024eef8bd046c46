"""Calibrates a registered reward model, for the asset and `rlhf reward calibrate` alike.

The asset's run also keeps Evidently's report, every group's ceilings as CSV, the reference window
and the calibration log, which the command writes as a file.
"""

import pandas as pd

from rlhf_pipeline.core.protocols import Progress, ignore_progress
from rlhf_pipeline.core.records import CalibrationReport, Interval, ModelVersion
from rlhf_pipeline.feedback.votes.splits import Recorder, log_opening
from rlhf_pipeline.learn.calibration.base import Calibrator
from rlhf_pipeline.learn.calibration.choice import CalibrationParams
from rlhf_pipeline.learn.calibration.group_calibration import CalibrationContext
from rlhf_pipeline.learn.calibration.selection import calibrate
from rlhf_pipeline.learn.reward_model import RewardModel


def calibrate_version(
    version: ModelVersion,
    reward_model: RewardModel,
    pairs: pd.DataFrame,
    votes: CalibrationContext,
    params: CalibrationParams,
    *,
    weight_before_change: float | None = None,
    record: Recorder = log_opening,
    progress: Progress = ignore_progress,
) -> tuple[Calibrator, CalibrationReport]:
    """`calibrate` on PREFERENCE_PAIRS, of all and by source and category, beside the noise
    ceilings.

    Votes before a change get `weight_before_change`, else the weight that the fit of the reward
    model chose, else that of `params`. Raises as `calibrate`.
    """
    weight = (
        version.params.get("weight_before_change")
        if weight_before_change is None
        else weight_before_change
    )
    return calibrate(
        pairs,
        reward_model,
        params
        if weight is None
        else params.model_copy(update={"weight_before_change": float(weight)}),
        reward_model_label=version.label,
        data_hash=version.data_hash or "",
        votes=votes,
        record=record,
        progress=progress,
    )


def calibration_figures(report: CalibrationReport) -> dict[str, float]:
    """Estimates and interval bounds as metrics, so that MLflow shows no estimate without its
    uncertainty. Unknown ones are left out.
    """
    raw = report.raw
    calibrated = report.calibrated
    intervals: dict[str, Interval | None] = {
        "accuracy": raw.accuracy,
        "noise_ceiling": report.noise_ceiling,
        "binned_gap_raw": raw.binned_gap,
        "binned_gap_calibrated": calibrated.binned_gap,
        "ece_raw": raw.ece,
        "ece_calibrated": calibrated.ece,
        "slope_raw": raw.slope,
        "slope_calibrated": calibrated.slope,
        "brier_calibrated": calibrated.brier,
        "log_loss_raw": raw.log_loss,
        "log_loss_calibrated": calibrated.log_loss,
    }
    for head in report.by_dimension:
        for stage, metrics in (("raw", head.raw), ("calibrated", head.calibrated)):
            if metrics is not None:
                intervals |= {
                    f"ece_{stage}_in_{head.group}": metrics.ece,
                    f"slope_{stage}_in_{head.group}": metrics.slope,
                    f"brier_{stage}_in_{head.group}": metrics.brier,
                }
    ends = {"": "value", "_low": "low", "_high": "high"}
    return {
        f"{name}{end}": float(getattr(interval, attribute))
        for name, interval in intervals.items()
        if interval is not None
        for end, attribute in ends.items()
    }

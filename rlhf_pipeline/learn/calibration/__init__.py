"""Calibration: how far the reward model's probabilities can be trusted, and how to correct them."""

from rlhf_pipeline.learn.calibration.base import Calibrator
from rlhf_pipeline.learn.calibration.calibration_windows import (
    OverTimeParams,
    calibration_over_time,
    over_time_frame,
)
from rlhf_pipeline.learn.calibration.choice import CalibrationParams
from rlhf_pipeline.learn.calibration.day_tests import CalibrationThresholds, run_calibration_tests
from rlhf_pipeline.learn.calibration.evidently_report import (
    EvidentlyResult,
    evidently_calibration_report,
)
from rlhf_pipeline.learn.calibration.group_calibration import (
    CalibrationContext,
    PredictedVotes,
    all_ceilings,
    calibration_by_group,
    ceilings_by_group,
    group_comparisons,
)
from rlhf_pipeline.learn.calibration.log import calibration_log
from rlhf_pipeline.learn.calibration.methods import CALIBRATORS, calibrator_from_json
from rlhf_pipeline.learn.calibration.metrics import (
    binned_gap,
    brier,
    ece,
    log_loss,
)
from rlhf_pipeline.learn.calibration.monitoring import (
    ece_lower_bound,
    overconfidence_p_value,
)
from rlhf_pipeline.learn.calibration.selection import (
    calibrate,
    calibrate_version,
    cross_fitted_p,
    fit_calibrator,
    measure_pairs,
    pairs_that_count,
    recalibrated_loss,
    voted_rows,
)
from rlhf_pipeline.learn.calibration.slope import calibration_slope
from rlhf_pipeline.learn.calibration.summary import (
    calibration_figures,
    calibration_metrics,
    reliability_table,
)

__all__ = [
    "CALIBRATORS",
    "CalibrationContext",
    "CalibrationParams",
    "CalibrationThresholds",
    "Calibrator",
    "EvidentlyResult",
    "OverTimeParams",
    "PredictedVotes",
    "all_ceilings",
    "binned_gap",
    "brier",
    "calibrate",
    "calibrate_version",
    "calibration_by_group",
    "calibration_figures",
    "calibration_log",
    "calibration_metrics",
    "calibration_over_time",
    "calibration_slope",
    "calibrator_from_json",
    "ceilings_by_group",
    "cross_fitted_p",
    "ece",
    "ece_lower_bound",
    "evidently_calibration_report",
    "fit_calibrator",
    "group_comparisons",
    "log_loss",
    "measure_pairs",
    "over_time_frame",
    "overconfidence_p_value",
    "pairs_that_count",
    "recalibrated_loss",
    "reliability_table",
    "run_calibration_tests",
    "voted_rows",
]

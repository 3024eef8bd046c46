"""Confidence one can believe. Knows margins, pairs and reward models by protocol; knows no registry and no schedule."""

from rlhf_pipeline.calibration.base import Calibrator
from rlhf_pipeline.calibration.evidently_report import CalibrationThresholds, EvidentlyResult, evidently_calibration_report
from rlhf_pipeline.calibration.log import calibration_log
from rlhf_pipeline.calibration.methods import CALIBRATORS, calibrator_from_json
from rlhf_pipeline.calibration.metrics import (
    brier,
    calibration_metrics,
    ece_debiased,
    ece_equal_mass,
    ece_equal_width,
    log_loss,
    reliability_table,
)
from rlhf_pipeline.calibration.monitoring import calibration_slope, ece_lower_bound
from rlhf_pipeline.calibration.plots import reliability_diagram
from rlhf_pipeline.calibration.selection import CalibrationParams, calibrate, fit_calibrator

__all__ = [
    "CALIBRATORS",
    "CalibrationParams",
    "CalibrationThresholds",
    "Calibrator",
    "EvidentlyResult",
    "brier",
    "calibrate",
    "calibration_log",
    "calibration_metrics",
    "calibration_slope",
    "calibrator_from_json",
    "ece_debiased",
    "ece_equal_mass",
    "ece_equal_width",
    "ece_lower_bound",
    "evidently_calibration_report",
    "fit_calibrator",
    "log_loss",
    "reliability_diagram",
    "reliability_table",
]

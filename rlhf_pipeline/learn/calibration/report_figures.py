"""The estimates of a calibration report as metrics of MLflow."""

from rlhf_pipeline.core.records import CalibrationReport, Interval


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

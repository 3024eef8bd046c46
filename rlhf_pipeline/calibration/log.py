"""Calibration reports as the entries of `calibration_log.json`. Knows the record; knows no file."""

import json
from collections.abc import Sequence
from typing import Any

from rlhf_pipeline.records import CalibrationReport


def calibration_log(reports: Sequence[CalibrationReport]) -> list[dict[str, Any]]:
    """One JSON-ready entry per calibration, oldest first; `CalibrationReport.model_validate` reads each back unchanged."""
    ordered = sorted(reports, key=lambda report: (report.fitted_at, report.reward_model, report.calibrator_version or 0))
    return [json.loads(report.model_dump_json()) for report in ordered]

"""Calibration reports as the entries of `calibration_log.json`, and back. Knows the record; knows no file.

The store keeps reports and never forgets one, so the log of a later run holds that of every earlier one as its beginning.
"""

import json
from collections.abc import Sequence
from typing import Any

from pydantic import ValidationError

from rlhf_pipeline.errors import DatasetError
from rlhf_pipeline.records import CalibrationReport


def calibration_log(reports: Sequence[CalibrationReport]) -> list[dict[str, Any]]:
    """One JSON-ready entry per calibration, oldest first; `CalibrationReport.model_validate` reads each back unchanged."""
    ordered = sorted(reports, key=lambda report: (report.fitted_at, report.reward_model, report.calibrator_version or 0))
    return [json.loads(report.model_dump_json()) for report in ordered]


def read_calibration_log(text: str) -> list[CalibrationReport]:
    """The reports of a `calibration_log.json`, in its order; those of earlier versions lack what was not measured then.

    Raises DatasetError naming the entry that is no calibration report.
    """
    try:
        entries = json.loads(text)
    except ValueError as cause:
        raise DatasetError(f"This calibration log is no JSON ({cause}). Write it again: rlhf export calibration-log.") from cause
    if not isinstance(entries, list):
        raise DatasetError("This calibration log is no JSON list of reports. Write it again: rlhf export calibration-log.")
    return [_report(entry, n) for n, entry in enumerate(entries, start=1)]


def _report(entry: Any, n: int) -> CalibrationReport:
    try:
        return CalibrationReport.model_validate(entry)
    except ValidationError as cause:
        first = cause.errors()[0]
        where = ".".join(str(part) for part in first["loc"])
        raise DatasetError(
            f"Entry {n} of this calibration log is no calibration report: {where}: {first['msg']}. Mend or remove it."
        ) from cause

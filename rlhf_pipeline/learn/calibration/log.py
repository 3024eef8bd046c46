"""Reads and writes calibration reports as entries of `calibration_log.json`.

The store never deletes a report, so each run's log begins with the log of the run before it.
"""

import json
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC
from typing import Any

from pydantic import ValidationError

from rlhf_pipeline.core.documents import parse_json
from rlhf_pipeline.core.errors import DatasetError
from rlhf_pipeline.core.records import CalibrationReport


@dataclass(frozen=True)
class ParsedCalibrationLog:
    """The valid reports of a log, and for each invalid entry its number (from 1) and the cause
    with its cure.
    """

    reports: tuple[CalibrationReport, ...]
    refused: tuple[tuple[int, str], ...]


def calibration_log(reports: Sequence[CalibrationReport]) -> list[dict[str, Any]]:
    """One JSON-ready entry per calibration, oldest first; `CalibrationReport.model_validate` reads
    each back unchanged.
    """
    ordered = sorted(
        reports,
        key=lambda report: (report.fitted_at, report.reward_model, report.calibrator_version or 0),
    )
    return [json.loads(report.model_dump_json()) for report in ordered]


def read_entries(text: str) -> ParsedCalibrationLog:
    """Read the log entry by entry and keep the valid ones; times are converted to UTC.

    Raises DatasetError if the text is not a JSON list.
    """
    try:
        # a number that is not finite invalidates only its entry
        entries = parse_json(text, is_finite=False)
    except (ValueError, RecursionError) as cause:
        raise DatasetError(
            f"This calibration log is not JSON ({cause}). Write it again: rlhf export "
            "calibration-log."
        ) from cause
    if not isinstance(entries, list):
        raise DatasetError(
            "This calibration log is not a JSON list of reports. Write it again: rlhf export "
            "calibration-log."
        )
    reports, refusals = [], []
    for n, entry in enumerate(entries, start=1):
        try:
            reports.append(_parse_report(entry))
        except DatasetError as why:
            refusals.append((n, str(why)))
    return ParsedCalibrationLog(tuple(reports), tuple(refusals))


def _parse_report(entry: Any) -> CalibrationReport:
    """Raises DatasetError saying what is wrong with it, as a sentence."""
    try:
        report = CalibrationReport.model_validate(entry)
        fitted_at = report.fitted_at.astimezone(UTC)
        report.model_dump_json().encode()
        json.dumps(report.model_dump(exclude={"fitted_at"}), allow_nan=False)
    except ValidationError as cause:
        first = cause.errors()[0]
        where = ".".join(str(part) for part in first["loc"])
        raise DatasetError(f"{where or 'the entry'}: {first['msg']}.") from cause
    except (ValueError, OverflowError, RecursionError) as cause:
        raise DatasetError(
            f"a number or text that JSON does not hold ({cause}); write null for missing numbers."
        ) from cause
    if (
        report.fitted_at.tzinfo is None
        or not report.reward_model.strip()
        or "\x00" in report.reward_model
    ):
        raise DatasetError(
            "fitted_at needs a time zone (in UTC it ends in Z), reward_model a name."
        )
    return report.model_copy(update={"fitted_at": fitted_at})

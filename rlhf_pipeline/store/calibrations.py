"""The versioned log of calibrators, each with its report. Knows their JSON; knows no calibration."""

import json
from itertools import count
from typing import Any

from sqlalchemy import func, select

from rlhf_pipeline.records import CalibrationReport, content_hash
from rlhf_pipeline.store.audit import acting
from rlhf_pipeline.store.conversion import json_of
from rlhf_pipeline.store.engine import Database
from rlhf_pipeline.store.schema import calibrations


class Calibrations:
    """Append-only; versions count from 1 per reward model."""

    def __init__(self, database: Database):
        self._database = database

    def add(self, report: CalibrationReport, calibrator: dict[str, Any]) -> int:
        """Store report and calibrator under the next version of that reward model; the version.

        Raises InvalidScores for NaN in either.
        """
        calibrator_text = json_of(calibrator, f"Calibrator of {report.reward_model}")
        with acting(self._database) as (connection, ledger):
            of_model = (self._database.mine(calibrations), calibrations.c.reward_model == report.reward_model)
            version = (connection.execute(select(func.max(calibrations.c.version)).where(*of_model)).scalar() or 0) + 1
            text = json_of(report.model_copy(update={"calibrator_version": version}), f"Calibration report of {report.reward_model}")
            row = {
                "reward_model": report.reward_model,
                "version": version,
                "fitted_at": report.fitted_at,
                "report": text,
                "calibrator": calibrator_text,
            }
            self._database.insert(connection, calibrations, [row])
            label = f"{report.reward_model} calibrator {version}"
            ledger.append(actor="pipeline", action="calibration.add", object_id=label, digest=content_hash(text, calibrator_text))
        return version

    def latest(self, reward_model: str) -> tuple[CalibrationReport, dict[str, Any]] | None:
        """The newest report and calibrator of a reward model that may serve: what it predicts through; None before the first."""
        wanted = (
            select(calibrations.c.report, calibrations.c.calibrator)
            .where(self._database.mine(calibrations), calibrations.c.reward_model == reward_model)
            .order_by(calibrations.c.version.desc())
        )
        with self._database.reading() as connection:
            for n_refused in count():  # the newest is the one, as a rule: reports are long, so they are read one by one
                row = connection.execute(wanted.limit(1).offset(n_refused)).one_or_none()
                if row is None:
                    break
                report = CalibrationReport.from_json(row.report)
                if report.may_serve:
                    return report, json.loads(row.calibrator)
        return None

    def log(self) -> list[CalibrationReport]:
        """All reports, in order of fitting."""
        order = (calibrations.c.fitted_at, calibrations.c.reward_model, calibrations.c.version)
        wanted = select(calibrations.c.report).where(self._database.mine(calibrations)).order_by(*order)
        with self._database.reading() as connection:
            return [CalibrationReport.from_json(text) for text in connection.execute(wanted).scalars()]

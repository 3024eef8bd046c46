"""The versioned log of calibrators with their reports, and of imported reports."""

import json
from collections.abc import Mapping, Sequence
from datetime import datetime
from itertools import count
from typing import Any

from sqlalchemy import ColumnElement, Connection, and_, func, or_, select

from rlhf_pipeline.core.records import CalibrationReport, Record
from rlhf_pipeline.store.audit import Ledger, audited_transaction, row_digest
from rlhf_pipeline.store.conversion import batches, json_of
from rlhf_pipeline.store.engine import MAX_ROWS, Repository
from rlhf_pipeline.store.schema import calibrations

NO_CALIBRATOR = "null"  # calibrator of an imported report, in JSON: none that could serve
# sort key of the log: fitted_at, reward model, version
EntryKey = tuple[datetime, str, int]


class LoggedCalibration(Record):
    """One entry of the log. `version` is its number among those of its reward model here; an
    imported report keeps, beside it, the number that it had where it was made
    (`report.calibrator_version`)."""

    version: int
    is_imported: bool
    report: CalibrationReport


class ImportedReports(Record):
    """Number of reports that an import stored, and of those that the log had already."""

    n_added: int = 0
    n_known: int = 0


class Calibrations(Repository):
    """Append-only; versions count from 1 per reward model, imported reports included."""

    def add(self, report: CalibrationReport, calibrator: dict[str, Any]) -> int:
        """Store report and calibrator under the reward model's next version; returns it. Raises
        InvalidScores for NaN in either.
        """
        calibrator_text = json_of(calibrator, f"Calibrator of {report.reward_model}")
        with audited_transaction(self._database) as (connection, ledger):
            version = self._next_version(connection, report.reward_model)
            text = _encode_report(report.model_copy(update={"calibrator_version": version}))
            row = self._insert(connection, report, version, text, calibrator_text)
            _link(ledger, row, action="calibration.add", actor="pipeline")
        return version

    def import_reports(
        self, reports: Sequence[CalibrationReport], *, actor: str
    ) -> ImportedReports:
        """Store reports without a calibrator, unchanged: they are shown and exported, and never
        used to predict.

        A report that the log has already is skipped, so importing the same file again changes
        nothing. Raises InvalidScores for NaN.
        """
        result = ImportedReports()
        for batch in self._database.with_backoff(batches(reports, MAX_ROWS)):
            with audited_transaction(self._database) as (connection, ledger):
                stored_texts = self._texts_of(
                    connection, sorted({report.reward_model for report in batch})
                )
                texts = {text: r for r in batch if (text := _encode_report(r)) not in stored_texts}
                for text, report in texts.items():
                    version = self._next_version(connection, report.reward_model)
                    row = self._insert(connection, report, version, text, NO_CALIBRATOR)
                    _link(ledger, row, action="calibration.import", actor=actor)
                result = ImportedReports(
                    n_added=result.n_added + len(texts),
                    n_known=result.n_known + len(batch) - len(texts),
                )
        return result

    def latest_serving(self, reward_model: str) -> tuple[CalibrationReport, dict[str, Any]] | None:
        """The newest report and calibrator of a reward model that may serve; None before
        the first.
        """
        query = (
            select(calibrations.c.report, calibrations.c.calibrator)
            .where(self._is_made_here(), calibrations.c.reward_model == reward_model)
            .order_by(calibrations.c.version.desc())
        )
        with self._database.read_transaction() as connection:
            # usually the newest one serves; reports are long, so they are read one by one
            for n_refused in count():
                row = connection.execute(query.limit(1).offset(n_refused)).one_or_none()
                if row is None:
                    break
                report = CalibrationReport.from_json(row.report)
                if report.may_serve:
                    return report, json.loads(row.calibrator)
        return None

    def of_latest_fit(self) -> CalibrationReport | None:
        """The newest report of the highest version of a reward model that was calibrated here; None
        before the first.
        """
        with self._database.read_transaction() as connection:
            labels = (
                connection.execute(
                    select(calibrations.c.reward_model).where(self._is_made_here()).distinct()
                )
                .scalars()
                .all()
            )
            if not labels:
                return None
            of_model = calibrations.c.reward_model == max(
                labels, key=lambda label: int(label.rpartition("@")[2])
            )
            newest = (
                select(calibrations.c.report)
                .where(self._is_made_here(), of_model)
                .order_by(calibrations.c.version.desc())
                .limit(1)
            )
            return CalibrationReport.from_json(connection.execute(newest).scalar_one())

    def log(self) -> list[CalibrationReport]:
        """The reports of all calibrators made here, in order of fitting."""
        return self._read_reports(self._is_made_here())

    def whole_log(self) -> list[CalibrationReport]:
        """`log` and the imported reports, in order of fitting."""
        return self._read_reports()

    def entry_keys(
        self, *, before: EntryKey | None = None, limit: int = 50, reward_model: str | None = None
    ) -> list[EntryKey]:
        """(fitted at, reward model, version) of the whole log, or of one reward model, the last
        fitted first, at most `limit`; the next page is `before` the last one.
        """
        order = (calibrations.c.fitted_at, calibrations.c.reward_model, calibrations.c.version)
        query = select(*order).order_by(*(c.desc() for c in order)).limit(limit)
        if before is not None:
            query = query.where(_is_before(before))
        if reward_model is not None:
            query = query.where(calibrations.c.reward_model == reward_model)
        return [
            (row.fitted_at, row.reward_model, row.version)
            for row in self._database.fetch_all(query)
        ]

    def models(self) -> list[str]:
        """The reward models of the whole log, the last fitted first."""
        query = (
            select(calibrations.c.reward_model)
            .group_by(calibrations.c.reward_model)
            .order_by(func.max(calibrations.c.fitted_at).desc(), calibrations.c.reward_model)
        )
        return list(self._database.fetch_scalars(query))

    def versions(self, reward_model: str) -> list[int]:
        """Versions of the calibrators of a reward model that were made here, the newest first."""
        mine = self._is_made_here(), calibrations.c.reward_model == reward_model
        return list(
            self._database.fetch_scalars(
                select(calibrations.c.version).where(*mine).order_by(calibrations.c.version.desc())
            )
        )

    def entry(self, reward_model: str, version: int) -> LoggedCalibration | None:
        """One entry of the whole log; None if there is none."""
        conditions = calibrations.c.reward_model == reward_model, calibrations.c.version == version
        row = self._database.fetch_first(select(calibrations).where(*conditions))
        if row is None:
            return None
        report = CalibrationReport.from_json(row.report)
        return LoggedCalibration(
            version=row.version, is_imported=row.calibrator == NO_CALIBRATOR, report=report
        )

    def _is_made_here(self) -> ColumnElement[bool]:
        return calibrations.c.calibrator != NO_CALIBRATOR

    def _read_reports(self, *which: ColumnElement[bool]) -> list[CalibrationReport]:
        order = (calibrations.c.fitted_at, calibrations.c.reward_model, calibrations.c.version)
        reports = select(calibrations.c.report).where(*which).order_by(*order)
        return [CalibrationReport.from_json(text) for text in self._database.fetch_scalars(reports)]

    def _next_version(self, connection: Connection, reward_model: str) -> int:
        of_model = calibrations.c.reward_model == reward_model
        return self._database.next_number(connection, calibrations.c.version, of_model)

    def _insert(
        self,
        connection: Connection,
        report: CalibrationReport,
        version: int,
        text: str,
        calibrator: str,
    ) -> dict[str, Any]:
        row = {
            "reward_model": report.reward_model,
            "version": version,
            "fitted_at": report.fitted_at,
            "report": text,
            "calibrator": calibrator,
        }
        self._database.insert(connection, calibrations, [row])
        return row

    def _texts_of(self, connection: Connection, reward_models: list[str]) -> set[str]:
        """All reports of these models, as stored."""
        mine = calibrations.c.reward_model.in_(reward_models)
        return set(connection.execute(select(calibrations.c.report).where(mine)).scalars())


def _link(ledger: Ledger, row: Mapping[str, Any], *, action: str, actor: str) -> None:
    ledger.append(
        actor=actor,
        action=action,
        object_id=f"{row['reward_model']} calibrator {row['version']}",
        digest=row_digest(calibrations, row),
    )


def _encode_report(report: CalibrationReport) -> str:
    return json_of(report, f"Calibration report of {report.reward_model}")


def _is_before(place: EntryKey) -> ColumnElement[bool]:
    fitted_at, reward_model, version = place
    same_moment = calibrations.c.fitted_at == fitted_at
    earlier_name = or_(
        calibrations.c.reward_model < reward_model,
        and_(calibrations.c.reward_model == reward_model, calibrations.c.version < version),
    )
    return or_(calibrations.c.fitted_at < fitted_at, and_(same_moment, earlier_name))

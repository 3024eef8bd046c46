"""Reads drift reports, which pages show with all their columns: each day once until replaced."""

import json
import math
import threading
from collections.abc import Iterator, Mapping
from datetime import date, datetime
from pathlib import PurePosixPath
from typing import Any

import pandas as pd
from pydantic import Field

from rlhf_pipeline.core.artefacts import Artefacts
from rlhf_pipeline.core.errors import NotFound
from rlhf_pipeline.core.object_stores import list_written
from rlhf_pipeline.reports.drift_days import DriftTest

STAGE = "drift_report"
NUMBERS = ("statistic", "threshold", "p_value")


class DriftTestOut(DriftTest):
    evidence: Mapping[str, Any] = Field(description="The figures behind the verdict.")


class DriftReports:
    """The tests of each day, without their evidence, which is ten times as large."""

    def __init__(self, files: Artefacts):
        self._files = files
        self._lock = threading.Lock()
        self._known: dict[date, tuple[datetime, tuple[DriftTest, ...]]] = {}

    def find_days(self) -> dict[date, datetime]:
        """When the report of each day was written."""
        return {
            date.fromisoformat(PurePosixPath(name).stem): written_at
            for name, written_at in list_written(self._files.base / STAGE).items()
            if name.endswith(".parquet")
        }

    def read(self, first: date, last: date) -> list[DriftTest]:
        """Oldest first."""
        report_times = {day: at for day, at in self.find_days().items() if first <= day <= last}
        with self._lock:
            changed = [
                day.isoformat()
                for day, at in report_times.items()
                if day not in self._known or self._known[day][0] != at
            ]
            if changed:
                tests_by_day: dict[date, list[DriftTest]] = {}
                for values in _read_rows(self._files.read_days(STAGE, changed)):
                    test = DriftTest.model_validate(values)
                    tests_by_day.setdefault(test.day, []).append(test)
                for name in changed:
                    day = date.fromisoformat(name)
                    self._known[day] = report_times[day], tuple(tests_by_day.get(day, ()))
            return [test for day in sorted(report_times) for test in self._known[day][1]]

    def read_day(self, day: date) -> list[DriftTestOut]:
        """With evidence. Raises NotFound for a day without a report."""
        rows = self._files.read_days(STAGE, [day.isoformat()])
        if rows.empty:
            raise NotFound(
                f"There is no drift report of {day}. The job `feedback` writes one for each day "
                "with votes."
            )
        return [DriftTestOut.model_validate(values) for values in _read_rows(rows)]


def _read_rows(frame: pd.DataFrame) -> Iterator[dict[str, Any]]:
    for values in frame.to_dict("records"):
        evidence = json.loads(values["evidence"])
        figures = {name: _to_number(values[name]) for name in NUMBERS}
        figures["effect"] = evidence.get("effect")
        # a detector reads vote by vote: its figures are those of its last event
        for event in evidence.get("events", ())[-1:]:
            figures |= {name: event.get(name) for name in ("statistic", "threshold")}
            if {"error_before", "error_after"} <= event.keys():
                figures["effect"] = event["error_after"] - event["error_before"]
        yield {**values, **figures, "evidence": evidence}


def _to_number(value: Any) -> float | None:
    return None if value is None or pd.isna(value) or math.isinf(value) else float(value)

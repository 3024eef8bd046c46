"""Builds a day's drift report: a verdict per space, one overall, and Evidently's view of both
windows.
"""

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import pandas as pd

from rlhf_pipeline.core.errors import NotEnoughData
from rlhf_pipeline.core.frames import DRIFT_REPORTS, check_frame
from rlhf_pipeline.core.records import DriftEvent, Verdict
from rlhf_pipeline.watch.drift import DETECTORS
from rlhf_pipeline.watch.drift.choice import DetectorChoice
from rlhf_pipeline.watch.drift.clusters import ClusterParams
from rlhf_pipeline.watch.drift.confirmation import (
    ConfirmationParams,
    describe_requirement,
    event_sources,
    find_confirming_events,
    list_confirmers,
)
from rlhf_pipeline.watch.drift.reference import Window
from rlhf_pipeline.watch.drift.sequential_test import SequentialTest
from rlhf_pipeline.watch.drift.spc import ControlChartParams
from rlhf_pipeline.watch.drift.windows import SpaceVerdict, WindowParams, judge_tests, run_tests

_COMMON = (
    ClusterParams,
    ConfirmationParams,
    DetectorChoice,
    ControlChartParams,
)


class DriftParams(*DETECTORS.params(*_COMMON)):  # type: ignore[misc]
    """Parameters of the drift report and of every detector, installed ones included."""


@dataclass(frozen=True)
class DataDriftReport:
    """Evidently's data-drift report: `json` to keep, `html()` (3.7 MB, self-contained) made on
    demand.
    """

    json: dict[str, Any]
    html: Callable[[], str]


@dataclass(frozen=True)
class DriftSignals:
    """What detectors and calibration tests found about one model.

    Events may be its whole history; those of the day up to vote `last_seq` decide the day's rows,
    so that later votes do not change the report.
    """

    events: Sequence[DriftEvent] = ()
    calibration_tests: Sequence[Mapping[str, Any]] = ()
    last_seq: int | None = None


def drift_report(
    day: str,
    *,
    model_version: str | None = None,
    reference: Window | None = None,
    of_policy: Window | None = None,
    current: Window | None = None,
    signals: DriftSignals | None = None,
    params: DriftParams | None = None,
) -> pd.DataFrame:
    """One row per space and test, and `overall`, in the schema DRIFT_REPORTS. Of the detectors only
    the chosen ones count. `of_policy` is the reference of the texts of a policy that was promoted
    after the reward model.

    `overall` is `drift` if the sequential test says so, or `confirmations` detectors or more with
    an event in the last `confirmation_window` votes up to `last_seq` (by default that of the day's
    last event), or on that day, that confirm each other. Any other drift makes it `warning`, data
    drift included (a change of the data does not prove that the model is wrong); so does a warning
    of a window test. With too few votes and nothing to report it is `insufficient`, else `stable`.
    """
    params, signals = params or DriftParams(), signals or DriftSignals()
    until = float("inf") if signals.last_seq is None else signals.last_seq
    unchosen = DETECTORS.keys() - set(params.chosen())
    own = [
        e
        for e in signals.events
        if e.model_version == model_version
        and str(e.day) <= day
        and e.seq <= until
        and e.detector not in unchosen
    ]
    tests = run_tests(reference, current, params, of_policy)
    compared = judge_tests(tests, params)  # at one false discovery rate
    n_current = 0 if current is None else int(current.rows["n_votes"].sum())
    n_reference = 0 if reference is None else len(reference.rows)
    rows = [
        *[
            _detector_row(name, day, own, n_reference, n_current, params)
            for name in params.chosen()
        ],
        *[_calibration_row(test, n_current) for test in signals.calibration_tests],
        *compared,
    ]
    if not signals.calibration_tests:
        rows.append(
            _row(
                "calibration",
                "none",
                Verdict.INSUFFICIENT,
                n_reference,
                n_current,
                {"reason": "no calibration test was made"},
            )
        )
    rows.append(_overall_row(rows, own, day, signals.last_seq, n_reference, n_current, params))
    frame = pd.DataFrame([row.model_dump() for row in rows])
    frame["evidence"] = [
        json.dumps(row.evidence, sort_keys=True, allow_nan=False, default=str) for row in rows
    ]
    return check_frame(
        frame.assign(day=day, model_version=model_version or "none")[list(DRIFT_REPORTS.columns)],
        DRIFT_REPORTS,
    )


def overall_verdict(report: pd.DataFrame) -> Verdict:
    """The verdict of the day in a report made by `drift_report`."""
    rows = report.loc[report["space"] == "overall", "verdict"]
    if len(rows) != 1:
        raise NotEnoughData(
            f"The drift report has {len(rows)} overall rows instead of one. Make the report of the "
            "day again."
        )
    return Verdict(rows.iloc[0])


def data_drift_report(
    reference: Window, current: Window, params: WindowParams | None = None
) -> DataDriftReport:
    """Evidently's DataDrift preset over one row per prompt: lengths, confidence. Raises
    NotEnoughData for an empty window.
    """
    from evidently import DataDefinition, Dataset, Report
    from evidently.presets import DataDriftPreset

    params = params or WindowParams()
    columns = ["prompt_length", "completion_length", "confidence"]
    frames = []
    for name, window in (("reference", reference), ("current", current)):
        rows = window.one_row_per_prompt()
        if rows.empty:
            raise NotEnoughData(
                f"The {name} window of {window.model_version} is empty; so Evidently cannot "
                f"compare windows. Collect votes first."
            )
        frames.append(
            rows.assign(confidence=rows["p"].where(rows["p"] > 0.5, 1 - rows["p"]))[columns]
        )
    definition = DataDefinition(numerical_columns=columns)
    before, now = (Dataset.from_pandas(frame, data_definition=definition) for frame in frames)
    snapshot = Report([DataDriftPreset(num_method="ks", num_threshold=params.alpha)]).run(
        now, before
    )
    return DataDriftReport(
        json=json.loads(snapshot.json()), html=lambda: str(snapshot.get_html_str(as_iframe=False))
    )


def _detector_row(
    name: str,
    day: str,
    events: Sequence[DriftEvent],
    n_reference: int,
    n_current: int,
    params: DriftParams,
) -> SpaceVerdict:
    fired = [e for e in events if e.kind == "drift" and e.detector == name and str(e.day) == day]
    evidence: dict[str, Any] = {
        "events": [
            {"event_id": e.event_id, "seq": e.seq, "change_seq": e.change_seq, **e.evidence}
            for e in fired
        ]
    }
    if fired:
        verdict = Verdict.DRIFT
    elif n_current < params.min_votes:
        verdict = Verdict.INSUFFICIENT
        evidence["reason"] = (
            f"{n_current} judged votes; {params.min_votes} are needed to call a day stable"
        )
    else:
        verdict = Verdict.STABLE
    return _row("errors", name, verdict, n_reference, n_current, evidence)


def _calibration_row(test: Mapping[str, Any], n_current: int) -> SpaceVerdict:
    verdict = {True: Verdict.STABLE, False: Verdict.DRIFT, None: Verdict.INSUFFICIENT}[
        test["passed"]
    ]
    statistic, threshold = test["value"], test["threshold"]
    return SpaceVerdict(
        space="calibration",
        detector=str(test["name"]),
        verdict=verdict,
        statistic=None if statistic is None else float(statistic),
        threshold=None if threshold is None else float(threshold),
        p_value=None,
        n_reference=0,
        n_current=n_current,
        evidence=dict(test),
    )


def _overall_row(
    rows: Sequence[SpaceVerdict],
    events: Sequence[DriftEvent],
    day: str,
    last_seq: int | None,
    n_reference: int,
    n_current: int,
    params: DriftParams,
) -> SpaceVerdict:
    today = [e.seq for e in events if str(e.day) == day]
    until = last_seq if last_seq is not None else max(today, default=None)
    recent = [
        e
        for e in events
        if until is not None and until - params.confirmation_window < e.seq <= until
    ]
    sources = set(event_sources(list_confirmers(recent)))
    # On a day of thousands of votes, a change in the morning lies outside that window, and
    # the trigger still fires on it.
    of_day = [e for e in list_confirmers(events) if str(e.day) == day]
    sources |= set(event_sources(find_confirming_events(of_day, params)))
    suspects = [r for r in rows if r.verdict in (Verdict.DRIFT, Verdict.WARNING)]
    is_confirmed = params.sequential_test_confirms and SequentialTest.name in sources
    if is_confirmed or 0 < params.confirmations <= len(sources):
        verdict = Verdict.DRIFT
    elif suspects or sources:
        verdict = Verdict.WARNING
    else:
        verdict = (
            Verdict.INSUFFICIENT
            if n_current < params.min_votes or n_reference < params.min_reference
            else Verdict.STABLE
        )
    evidence = {
        "says_drift": sorted(sources),
        "confirmations": params.confirmations,
        "suspects": [f"{r.space}/{r.detector}: {r.verdict}" for r in suspects],
        "rule": f"drift needs {describe_requirement(params)}; other error detectors, data drift, a "
        "day's error rate or calibration alone are a warning",
    }
    row = _row("overall", "confirmation", verdict, n_reference, n_current, evidence)
    return row.model_copy(
        update={"statistic": float(len(sources)), "threshold": float(params.confirmations)}
    )


def _row(
    space: str,
    detector: str,
    verdict: Verdict,
    n_reference: int,
    n_current: int,
    evidence: dict[str, Any],
) -> SpaceVerdict:
    return SpaceVerdict(
        space=space,
        detector=detector,
        verdict=verdict,
        statistic=None,
        threshold=None,
        p_value=None,
        n_reference=n_reference,
        n_current=n_current,
        evidence=evidence,
    )

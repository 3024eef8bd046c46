"""Builds a day's drift report: a verdict per space, one overall, and Evidently's view of both
windows.
"""

import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import pandas as pd

from rlhf_pipeline.drift import DETECTORS
from rlhf_pipeline.drift.category_rises import CategoryParams
from rlhf_pipeline.drift.causes import CauseParams
from rlhf_pipeline.drift.choice import DetectorChoice
from rlhf_pipeline.drift.clusters import ClusterParams
from rlhf_pipeline.drift.confirmation import (
    DAY_TESTS,
    RISE_TEST,
    ConfirmationParams,
    event_sources,
    find_confirming_events,
    list_confirmers,
)
from rlhf_pipeline.drift.policy import PolicyParams, policy_tests
from rlhf_pipeline.drift.reference import Window
from rlhf_pipeline.drift.spc import ControlChartParams
from rlhf_pipeline.drift.stream import StreamWarning
from rlhf_pipeline.drift.vote_stream import StreamParams
from rlhf_pipeline.drift.windows import SpaceVerdict, WindowParams, judge_tests, run_tests
from rlhf_pipeline.errors import NotEnoughData
from rlhf_pipeline.frames import DRIFT_REPORTS, check_frame
from rlhf_pipeline.records import DriftEvent, PolicyDay, Verdict

MAX_NAMED = 10  # hasty annotators in a sentence
_COMMON = (
    ClusterParams,
    ConfirmationParams,
    DetectorChoice,
    ControlChartParams,
    PolicyParams,
    StreamParams,
    CategoryParams,
    CauseParams,
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

    Events and warnings may be its whole history; those of the day up to vote `last_seq` decide the
    day's rows, so that later votes do not change the report.
    """

    events: Sequence[DriftEvent] = ()
    warnings: Sequence[StreamWarning] = ()
    calibration_tests: Sequence[Mapping[str, Any]] = ()
    last_seq: int | None = None
    votes: pd.DataFrame | None = None  # as `mark_hasty_votes` gives them


def drift_report(
    day: str,
    *,
    model_version: str | None = None,
    reference: Window | None = None,
    current: Window | None = None,
    signals: DriftSignals | None = None,
    policy_days: Sequence[PolicyDay] = (),
    params: DriftParams | None = None,
) -> pd.DataFrame:
    """One row per space and test, and `overall`, in the schema DRIFT_REPORTS. Of the detectors only
    the chosen ones count.

    `overall` is `drift` if the rise test says so, or at least `confirmations` of these: a detector
    (with an event in the last `confirmation_window` votes up to `last_seq`, by default that of the
    day's last event, or with others on that day that confirm each other), the error rate of the day
    (with `calibration_confirms` or its calibration). Any other drift makes it `warning`, data drift
    included (a change of the data does not prove that the model is wrong); so does a warning of a
    window test, or of as many detectors. With too few votes and nothing to report it is
    `insufficient`, else `stable`.
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
    warnings = [w for w in signals.warnings if w.seq <= until]
    today = next((one for one in policy_days if one.day == day), None)
    tests = [*run_tests(reference, current, params), *policy_tests(today, policy_days, params)]
    compared = judge_tests(tests, params)  # at one false discovery rate
    n_current = 0 if current is None else int(current.rows["n_votes"].sum())
    n_reference = 0 if reference is None else len(reference.rows)
    rows = [
        *[
            _detector_row(name, day, own, warnings, n_reference, n_current, params)
            for name in params.chosen()
        ],
        *_haste_rows(day, signals.votes, params),
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
    warnings: Sequence[StreamWarning],
    n_reference: int,
    n_current: int,
    params: DriftParams,
) -> SpaceVerdict:
    fired = [e for e in events if e.kind == "drift" and e.detector == name and str(e.day) == day]
    warned = [w for w in warnings if w.detector == name and str(w.day) == day]
    evidence: dict[str, Any] = {
        "events": [
            {"event_id": e.event_id, "seq": e.seq, "change_seq": e.change_seq, **e.evidence}
            for e in fired
        ],
        "warnings_at": [w.seq for w in warned],
    }
    if fired:
        verdict = Verdict.DRIFT
    elif n_current < params.min_votes:
        verdict = Verdict.INSUFFICIENT
        evidence["reason"] = (
            f"{n_current} judged votes; {params.min_votes} are needed to call a day stable"
        )
    else:
        verdict = Verdict.WARNING if warned else Verdict.STABLE
    return _row("errors", name, verdict, n_reference, n_current, evidence)


def _haste_rows(
    day: str, votes: pd.DataFrame | None, params: DriftParams
) -> Iterator[SpaceVerdict]:
    """One row where the time of a vote of the day is known. Detectors leave hasty sessions out, so
    only this row shows which annotators hurry.
    """
    if votes is None or not {"annotator_id", "duration_s"} <= set(votes.columns):
        return
    timed = votes[(votes["day"].astype(str) == day) & (votes["duration_s"] > 0)]
    if timed.empty:
        return
    by_annotator = timed.loc[timed["is_hasty"], "annotator_id"].value_counts()
    n_hasty = int(by_annotator.sum())
    share = n_hasty / len(timed)
    shown = [f"{annotator} ({n})" for annotator, n in by_annotator.head(MAX_NAMED).items()]
    others = len(by_annotator) - len(shown)
    names = f": {', '.join(shown)}{f' and {others} more' if others else ''}" if shown else ""
    if len(timed) < params.min_votes:
        verdict = Verdict.INSUFFICIENT
    else:
        verdict = Verdict.WARNING if share >= params.haste_effect else Verdict.STABLE
    yield _row(
        "errors",
        "haste",
        verdict,
        0,
        len(timed),
        {
            "reason": f"{n_hasty} of {len(timed)} votes with a time were cast much faster than "
            f"their annotators usually do{names}",
            "n_hasty": n_hasty,
            "annotators": {str(annotator): int(n) for annotator, n in by_annotator.items()},
        },
    ).model_copy(update={"statistic": share, "threshold": params.haste_effect})


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
    sources = set(event_sources(list_confirmers(recent, params)))
    # On a day of thousands of votes, a change in the morning lies outside that window, and
    # the trigger still fires on it.
    sources |= set(
        event_sources(find_confirming_events([e for e in events if str(e.day) == day], params))
    )
    of_a_day = [
        r
        for r in rows
        if r.detector == "error_rate" or (r.space == "calibration" and params.calibration_confirms)
    ]
    if any(r.verdict == Verdict.DRIFT for r in of_a_day):
        sources.add(DAY_TESTS)
    warned = [r for r in rows if r.detector in DETECTORS and r.verdict == Verdict.WARNING]
    suspects = [
        r
        for r in rows
        if r.verdict == Verdict.DRIFT or (r.verdict == Verdict.WARNING and r not in warned)
    ]
    # one detector passes its warning level by chance on many days, two at once rarely
    if len(warned) >= params.confirmations:
        suspects += warned
    is_confirmed = params.rise_test_confirms and RISE_TEST in sources
    if is_confirmed or len(sources) >= params.confirmations:
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
        "rule": f"drift needs the rise test, or {params.confirmations} of the other error "
        "detectors and the day's error rate"
        + (" or calibration, which count once" if params.calibration_confirms else "")
        + "; data drift or calibration alone is a warning",
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

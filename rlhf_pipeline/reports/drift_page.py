"""Builds the day's drift report as one HTML page: errors over time, prompt clusters, calibration.

The page fetches and runs nothing, so it opens offline and can be emailed; the same evidence gives
the same bytes. If there is too little data for a number, the page states the reason instead.
"""

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import date
from typing import Any, TypeVar

import pandas as pd

from rlhf_pipeline.core.errors import NotEnoughData
from rlhf_pipeline.core.intervals import interval_of_mean
from rlhf_pipeline.core.plugins import select_params
from rlhf_pipeline.core.records import DriftEvent, Evaluation, GroupCalibration, Interval, Verdict
from rlhf_pipeline.learn.calibration.calibration_windows import CalibrationWindow
from rlhf_pipeline.learn.calibration.group_calibration import (
    MIN_PAIRS,
    UNKNOWN_CEILING,
    largest_groups,
)
from rlhf_pipeline.reports.calibration import (
    COIN_BRIER,
    MIN_IN_BIN,
    chart_reliability,
    chart_windows,
)
from rlhf_pipeline.reports.control_charts import chart_control
from rlhf_pipeline.reports.draw import chart_css, draw_legend, draw_svg
from rlhf_pipeline.reports.drift import chart_clusters, chart_timeline
from rlhf_pipeline.reports.rendering import render_page
from rlhf_pipeline.watch.drift.cluster_history import DayClusters
from rlhf_pipeline.watch.drift.clusters import ClusterParams
from rlhf_pipeline.watch.drift.policy import PolicyDay
from rlhf_pipeline.watch.drift.reference import LEFT_OUT, Window
from rlhf_pipeline.watch.drift.reliability import (
    Reliability,
    reliability_of_day,
    reliability_of_reference,
)
from rlhf_pipeline.watch.drift.slices import ErrorSlice
from rlhf_pipeline.watch.drift.spc import CHARTS, RULES, ControlChartParams, control_charts
from rlhf_pipeline.watch.metrics.policy_intervals import policy_interval, refusal_interval

Row = dict[str, Any]
T = TypeVar("T")
Texts = Mapping[str, tuple[str, str]]  # comparison id -> prompt, completion a

MAX_VOTES = 20_000  # in the drawn stream
MAX_GROUPS = 20  # shown at once
MAX_SLICES = 15
DAYS_OF_TREND = 5  # shown of each cluster
MAX_MARKED = 10  # rows of the control charts
OWN_SECTION = {"errors", "calibration", "policy", "overall"}  # spaces with a section of their own
PROMPT_WIDTH, COMPLETION_WIDTH, NAME_WIDTH = 160, 100, 40  # characters


@dataclass(frozen=True)
class DayEvidence:
    """The data of a day's page. `report` has the schema DRIFT_REPORTS and one overall row.

    `predictions`: columns p, outcome, group, error of the day's votes.
    `by_group`: their calibration by source and category.
    `over_time`: windows up to the day, oldest first, or the reason why they are omitted.
    `clusters`: of the prompts of both windows, or the reason why they are omitted.
    `slices`: error rates of the day's votes by category, annotator and more.
    `errors`: seq, day, error of the model's stream up to the day.
    `texts`: comparison ids -> their prompt and completion a; called only for the examples.
    `policy_days`: the deployed policy up to the day, or the reason why it is omitted.
    `evaluations`: by policy, the evaluation that the gate decided on.
    `data_drift`: Evidently's report as JSON, `files`: names of the files beside the page.
    """

    project: str
    day: str
    report: pd.DataFrame
    reference: Window | None = None
    current: Window | None = None
    predictions: pd.DataFrame = field(
        default_factory=lambda: pd.DataFrame({"p": [], "outcome": [], "group": [], "error": []})
    )
    errors: pd.DataFrame = field(
        default_factory=lambda: pd.DataFrame({"seq": [], "day": [], "error": []})
    )
    events: Sequence[DriftEvent] = ()
    noise_ceiling: Interval | None = None
    by_group: Sequence[GroupCalibration] = ()
    over_time: Sequence[CalibrationWindow] | str = ()
    clusters: DayClusters | str = ""
    slices: Sequence[ErrorSlice] = ()
    texts: Callable[[Sequence[str]], Texts] = lambda ids: {}
    policy_days: Sequence[PolicyDay] | str = ()
    evaluations: Mapping[str, Evaluation] = field(default_factory=dict)
    data_drift: Mapping[str, Any] = field(default_factory=dict)
    files: Sequence[str] = ()


def render_drift_page(evidence: DayEvidence, params: ClusterParams | None = None) -> str:
    """Render the page as one HTML document."""
    params = params or ClusterParams()
    rows = [
        row | {"evidence": json.loads(row["evidence"])}
        for row in evidence.report.to_dict("records")
    ]
    return render_page(
        "drift_page.html",
        evidence=evidence,
        style=chart_css(),
        draw_svg=draw_svg,
        draw_legend=draw_legend,
        overall=_find_overall_row(rows),
        errors=_collect_errors(evidence, rows),
        control=_collect_control_charts(evidence, select_params(ControlChartParams, params)),
        clusters=_collect_clusters(evidence),
        slices=_collect_slices(evidence.slices),
        params=params,
        calibration=_collect_calibration(evidence, rows),
        windows=_collect_windows(evidence.over_time),
        spaces=[row for row in rows if row["space"] not in OWN_SECTION],
        policy=_collect_policy(evidence),
        metrics=[
            m for m in evidence.data_drift.get("metrics", []) if "column" in m.get("config", {})
        ],
        left_out=LEFT_OUT,
        days_of_trend=DAYS_OF_TREND,
        unknown_ceiling=UNKNOWN_CEILING,
        prompt_width=PROMPT_WIDTH,
        completion_width=COMPLETION_WIDTH,
        name_width=NAME_WIDTH,
        max_marked=MAX_MARKED,
        min_pairs=MIN_PAIRS,
        min_in_bin=MIN_IN_BIN,
        coin_brier=COIN_BRIER,
    )


def _collect_errors(evidence: DayEvidence, rows: Sequence[Row]) -> dict[str, Any]:
    """The error rate in vote order, and each detector's signals."""
    tests = [row for row in rows if row["space"] == "errors"]
    rates = [row["evidence"] for row in tests if row["detector"] == "error_rate"]
    predictions = evidence.predictions
    errors = evidence.errors.sort_values("seq", ignore_index=True).iloc[-MAX_VOTES:]
    return {
        "tests": tests,
        "verdict": _worst_verdict(tests),
        # share of the day's votes against the model, resampled by comparison
        "rate": interval_of_mean(
            predictions["error"].astype(float), groups=predictions["group"].to_numpy()
        )
        if len(predictions)
        else None,
        "rate_before": None
        if evidence.reference is None
        else next((rate.get("mean_reference") for rate in rates), None),
        "last_seq": None if errors.empty else int(errors["seq"].max()),
        "chart": None
        if errors.empty
        else chart_timeline(
            errors,
            evidence.events,
            noise_ceiling=evidence.noise_ceiling,
            day=evidence.day,
        ),
    }


def _collect_control_charts(evidence: DayEvidence, params: ControlChartParams) -> dict[str, Any]:
    """Control charts of the model up to the day, or the reason why there are none."""
    try:
        charts = control_charts(evidence.errors, params)
    except NotEnoughData as few:
        return {"missing": str(few)}
    return {
        "missing": None,
        "found": charts,
        "n_judged": len(charts.points) - charts.baseline.n_subgroups,
        "n_votes": params.spc_votes,
        "chart": chart_control(charts, evidence.day),
        "latest_marked": charts.points[charts.points["rules"].map(len) > 0].iloc[::-1],
        "charts": CHARTS,
        "rules": RULES,
    }


def _collect_clusters(evidence: DayEvidence) -> dict[str, Any]:
    """Clusters of prompts that fail, became more frequent, less frequent or worse, or the reason
    why there are no clusters.
    """
    clusters = evidence.clusters
    if isinstance(clusters, str):
        return {"missing": clusters}
    return {
        "missing": None,
        "found": clusters,
        "n_changed": sum(
            c.is_failing or c.is_worse or c.change != "steady" for c in clusters.clusters
        ),
        "chart": chart_clusters(clusters.clusters),
        "texts": evidence.texts([i for cluster in clusters.clusters for i in cluster.examples]),
    }


def _collect_slices(slices: Sequence[ErrorSlice]) -> dict[str, Any]:
    """Failing slices and those with the highest lift; how many are too small."""
    measured_slices = [error_slice for error_slice in slices if error_slice.error_rate is not None]
    return {
        "shown": measured_slices[:MAX_SLICES],
        "n_measured": len(measured_slices),
        "n_all": len(slices),
    }


def _collect_calibration(evidence: DayEvidence, rows: Sequence[Row]) -> dict[str, Any]:
    """Stated confidence against outcomes in the reference, today and in each of today's groups."""
    reference = evidence.reference
    sides: list[Reliability | str] = [
        "The model has no reference window."
        if reference is None
        else _value_or_reason(lambda: reliability_of_reference(reference)),
        _value_or_reason(lambda: reliability_of_day(evidence.predictions)),
    ]
    before, today = (None if isinstance(side, str) else side for side in sides)
    bins = [side.bins if side else () for side in (before, today)]
    by_low = [{b.low: b for b in side} for side in bins]
    lows = sorted({*by_low[0], *by_low[1]})
    ceiling = evidence.noise_ceiling
    basis = "" if ceiling is None or ceiling.basis is None else f" ({ceiling.basis})"
    tests = [row for row in rows if row["space"] == "calibration"]
    groups = largest_groups(evidence.by_group, MAX_GROUPS)
    return {
        "missing": [side for side in sides if isinstance(side, str)],
        "before": before,
        "today": today,
        "bins": [(low, [side.get(low) for side in by_low]) for low in lows],
        "chart": chart_reliability(
            {"reference": bins[0], "this day": bins[1]},
            ceiling,
            title="Reliability of the reference and of the day",
            ceiling_name=f"noise ceiling{basis}",
        ),
        "groups": groups,
        "other_groups": [group for group in evidence.by_group if group not in groups],
        "tests": tests,
        "verdict": _worst_verdict(tests),
    }


def _collect_windows(windows: Sequence[CalibrationWindow] | str) -> dict[str, Any]:
    """Calibration over time, or the reason why it is missing."""
    if isinstance(windows, str):
        return {"missing": windows}
    if not any(window.n_votes for window in windows):
        return {"missing": "No vote has met a prediction in the windows up to this day."}
    last = windows[-1]
    return {
        "missing": None,
        "n_days": (date.fromisoformat(last.day) - date.fromisoformat(last.first_day)).days + 1,
        "chart": chart_windows(windows, marks_last=True),
        "latest_first": windows[::-1],
    }


def _collect_policy(evidence: DayEvidence) -> dict[str, Any]:
    """The deployed policy by day, or the reason why it is missing."""
    days = evidence.policy_days
    if isinstance(days, str) or not days:
        none = "No policy of this project completed prompts on this day or shortly before."
        return {"missing": days or none}
    return {
        "missing": None,
        "latest_first": [
            (
                day,
                [
                    policy_interval(day.reward),
                    refusal_interval(day),
                    policy_interval(day.length),
                ],
            )
            for day in days[::-1]
        ],
        "evaluations": evidence.evaluations,
    }


def _find_overall_row(rows: Sequence[Row]) -> Row:
    overall = [row for row in rows if row["space"] == "overall"]
    if len(overall) != 1:
        raise NotEnoughData(
            f"The drift report has {len(overall)} overall rows instead of one. Make the report of "
            "the day again."
        )
    return overall[0]


def _worst_verdict(rows: Sequence[Row]) -> Verdict | None:
    """The most serious verdict; `insufficient` only if all rows have too little data."""
    verdicts = {Verdict(row["verdict"]) for row in rows}
    order = (Verdict.DRIFT, Verdict.WARNING, Verdict.STABLE, Verdict.INSUFFICIENT)
    return next((verdict for verdict in order if verdict in verdicts), None)


def _value_or_reason(make: Callable[[], T]) -> T | str:
    try:
        return make()
    except NotEnoughData as few:
        return str(few)

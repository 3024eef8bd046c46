"""One page a day that stands alone: errors over time, clusters of prompts, calibration. Knows what
it is handed; knows no storage.

It fetches nothing and runs nothing, so it opens offline and may be mailed; the same evidence gives
the same bytes. What there is too little of is said in words where its number would stand.
"""

import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, TypeVar
from xml.etree.ElementTree import Element

import pandas as pd

from rlhf_pipeline.drift import page_parts
from rlhf_pipeline.drift.calibration_section import render_calibration_over_time
from rlhf_pipeline.drift.clusters import ClusterParams, SemanticClusters, semantic_clusters
from rlhf_pipeline.drift.markup import make_element, render_html
from rlhf_pipeline.drift.page_parts import Texts, to_records
from rlhf_pipeline.drift.page_style import STYLE
from rlhf_pipeline.drift.page_text import (
    describe_best_error_rate,
    display_name,
    format_share,
    join_names,
    make_badge,
)
from rlhf_pipeline.drift.reference import Window
from rlhf_pipeline.drift.reliability import (
    Reliability,
    reliability_of_day,
    reliability_of_reference,
)
from rlhf_pipeline.drift.stream import StreamWarning
from rlhf_pipeline.errors import NotEnoughData
from rlhf_pipeline.records import CalibrationWindow, DriftEvent, GroupCalibration, Interval, Verdict
from rlhf_pipeline.votes import interval_of_mean

T = TypeVar("T")

MEANING = {
    Verdict.INSUFFICIENT: "Too little data for a verdict. Missing data is never called stable.",
    Verdict.STABLE: "The champion reward model fits the day.",
    Verdict.WARNING: "Something moved, but not enough agree that the model has become wrong.",
    Verdict.DRIFT: "The world has moved away from the reward model.",
}


@dataclass(frozen=True)
class DayEvidence:
    """All that a day's page is made of. `report` has the schema DRIFT_REPORTS and one overall row.

    `judged`: columns p, outcome, group, error of the day's votes.
    `by_group`: their calibration by source and category.
    `over_time`: windows up to the day, the oldest first, or in words why they are left out.
    `errors`: seq, day, error of the model's stream up to the day.
    `texts`: comparison ids -> their prompt and completion a, asked only for the examples.
    `data_drift`: Evidently's report as JSON, `files`: names of what lies beside the page.
    """

    project: str
    day: str
    report: pd.DataFrame
    reference: Window | None = None
    current: Window | None = None
    judged: pd.DataFrame = field(
        default_factory=lambda: pd.DataFrame({"p": [], "outcome": [], "group": [], "error": []})
    )
    errors: pd.DataFrame = field(
        default_factory=lambda: pd.DataFrame({"seq": [], "day": [], "error": []})
    )
    events: Sequence[DriftEvent] = ()
    warnings: Sequence[StreamWarning] = ()
    noise_ceiling: Interval | None = None
    by_group: Sequence[GroupCalibration] = ()
    over_time: Sequence[CalibrationWindow] | str = ()
    texts: Callable[[Sequence[str]], Texts] = lambda ids: {}
    data_drift: Mapping[str, Any] = field(default_factory=dict)
    files: Sequence[str] = ()


def render_html_report(evidence: DayEvidence, params: ClusterParams | None = None) -> str:
    """The page as one HTML document."""
    params, e = params or ClusterParams(), evidence
    rows = e.report.assign(evidence=[json.loads(cell) for cell in e.report["evidence"]])
    clusters = _value_or_reason(lambda: semantic_clusters(e.reference, e.current, params))
    before, today = _measure_calibration(e)
    body = make_element(
        "body",
        make_element("a", "To the content", href="#content", class_="skip"),
        _render_head(e, rows),
        make_element(
            "main",
            _render_summary(evidence, rows, clusters, today),
            _render_section(
                "drift-over-time",
                "1  Drift over time",
                page_parts.render_drift_over_time(
                    e.day, rows, e.errors, e.events, e.warnings, e.noise_ceiling
                ),
            ),
            _render_section(
                "semantic-clusters",
                "2  Semantic clusters",
                page_parts.render_clusters(clusters, e.texts, params, e.noise_ceiling),
            ),
            _render_section(
                "calibration",
                "3  Calibration",
                page_parts.render_calibration(before, today, rows, e.noise_ceiling, e.by_group),
            ),
            _render_section(
                "calibration-over-time",
                "Calibration over time",
                render_calibration_over_time(e.over_time),
            ),
            _render_section(
                "data-drift",
                "Lengths, confidence and embeddings",
                page_parts.render_data_drift(rows, e.data_drift, e.files),
            ),
            id="content",
        ),
        make_element("footer", make_element("p", _provenance_note(e))),
    )
    head = make_element(
        "head",
        make_element("meta", charset="utf-8"),
        make_element("meta", name="viewport", content="width=device-width, initial-scale=1"),
        make_element("meta", name="color-scheme", content="light dark"),
        make_element(
            "title", f"Drift report of {e.day}: {_overall_row(rows)['verdict']} · {e.project}"
        ),
        make_element("style", STYLE),
    )
    return f"<!doctype html>\n{render_html(make_element('html', head, body, lang='en'))}\n"


def _render_head(evidence: DayEvidence, rows: pd.DataFrame) -> Element:
    overall = _overall_row(rows)
    said, suspects = (
        overall["evidence"].get("says_drift", []),
        overall["evidence"].get("suspects", []),
    )
    because = (
        f"Says drift: {join_names(said)}."
        if said
        else "Looks different: "
        f"{', '.join(display_name(s.replace('/', ' by ')) for s in suspects)}."
        if suspects
        else None
    )
    facts = {
        "Day": evidence.day,
        "Project": evidence.project,
        "Reward model": str(overall["model_version"])
        if overall["model_version"] != "none"
        else "none yet",
        "Judged votes": f"{overall['n_current']:,}",
        "Reference": f"{overall['n_reference']:,} comparisons"
        if overall["n_reference"]
        else "none",
    }
    return make_element(
        "header",
        make_element("p", "Drift report", class_="kicker"),
        make_element("h1", evidence.day, " ", make_badge(overall["verdict"])),
        make_element("p", MEANING[Verdict(overall["verdict"])], class_="lead"),
        make_element("p", because) if because else None,
        make_element(
            "dl",
            (
                make_element("div", make_element("dt", name), make_element("dd", value))
                for name, value in facts.items()
            ),
        ),
    )


def _error_rate(judged: pd.DataFrame) -> Interval | None:
    """Share of the day's votes that went against the model, drawn by comparison; None without
    votes.
    """
    return (
        interval_of_mean(judged["error"].astype(float), groups=judged["group"].to_numpy())
        if len(judged)
        else None
    )


def _render_summary(
    evidence: DayEvidence,
    rows: pd.DataFrame,
    clusters: SemanticClusters | str,
    today: Reliability | str,
) -> Element:
    rate = _error_rate(evidence.judged)
    tests = (
        rows.loc[rows["detector"] == "error_rate", "evidence"]
        if evidence.reference is not None
        else ()
    )
    before = next((test.get("mean_reference") for test in tests), None)
    if isinstance(clusters, str):
        moved = "too few"
    else:
        n_changed = sum(c.is_worse or c.change != "steady" for c in clusters.clusters)
        moved = f"{n_changed} of {len(clusters.clusters)}"
    slope = today.slope if isinstance(today, Reliability) else None
    cards = [
        (
            "drift-over-time",
            "Error rate",
            "no votes" if rate is None else format_share(rate.value),
            "nothing was judged"
            if rate is None
            else f"95 % interval {format_share(rate.low)} to {format_share(rate.high)}; "
            f"{describe_best_error_rate(evidence.noise_ceiling)}; "
            + ("no reference yet" if before is None else f"reference {format_share(before)}"),
            _worst_verdict(rows[rows["space"] == "errors"]),
        ),
        ("semantic-clusters", "Clusters changed", moved, "grew, shrank or got worse", None),
        (
            "calibration",
            "Calibration slope",
            "too few"
            if isinstance(today, str)
            else "unknown"
            if slope is None
            else f"{slope.value:.2f}",
            "1 is calibrated, below 1 overconfident"
            if isinstance(today, str)
            else "every vote went one way, or no side was taken"
            if slope is None
            else f"95 % interval {slope.low:.2f} to {slope.high:.2f}",
            _worst_verdict(rows[rows["space"] == "calibration"]),
        ),
    ]
    return make_element(
        "ul",
        (
            make_element(
                "li",
                make_element("a", name, href=f"#{target}"),
                make_element("strong", value),
                make_element("span", note),
                None if verdict is None else make_badge(verdict),
            )
            for target, name, value, note, verdict in cards
        ),
        class_="cards",
    )


def _measure_calibration(evidence: DayEvidence) -> tuple[Reliability | str, Reliability | str]:
    window = evidence.reference
    before = (
        "The model has no reference window."
        if window is None
        else _value_or_reason(lambda: reliability_of_reference(window))
    )
    return before, _value_or_reason(lambda: reliability_of_day(evidence.judged))


def _provenance_note(evidence: DayEvidence) -> str:
    seqs = evidence.errors["seq"]
    read = "" if seqs.empty else f" The error stream is read up to vote {int(seqs.max()):,}."
    return (
        f"Made by rlhf_pipeline from the drift_report of {evidence.day}.{read} The same votes "
        "give the same page."
    )


def _overall_row(rows: pd.DataFrame) -> Mapping[str, Any]:
    found = to_records(rows[rows["space"] == "overall"])
    if len(found) != 1:
        raise NotEnoughData(
            f"The drift report has {len(found)} overall rows instead of one. Make the report of "
            "the day again."
        )
    return found[0]


def _worst_verdict(rows: pd.DataFrame) -> Verdict | None:
    """The most serious verdict of the rows; a row with too little counts only where all have."""
    found = {Verdict(v) for v in rows["verdict"]}
    return next(
        (
            v
            for v in (Verdict.DRIFT, Verdict.WARNING, Verdict.STABLE, Verdict.INSUFFICIENT)
            if v in found
        ),
        None,
    )


def _value_or_reason(make: Callable[[], T]) -> T | str:
    try:
        return make()
    except NotEnoughData as few:
        return str(few)


def _render_section(name: str, title: str, children: Iterable[Element]) -> Element:
    return make_element(
        "section",
        make_element("h2", title, id=f"{name}-title"),
        children,
        id=name,
        aria_labelledby=f"{name}-title",
    )

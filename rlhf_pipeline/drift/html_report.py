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
from rlhf_pipeline.drift.clusters import ClusterParams, SemanticClusters, semantic_clusters
from rlhf_pipeline.drift.markup import el, html
from rlhf_pipeline.drift.over_time import calibration_over_time
from rlhf_pipeline.drift.page_parts import Texts, records_of
from rlhf_pipeline.drift.page_style import STYLE
from rlhf_pipeline.drift.reference import Window
from rlhf_pipeline.drift.reliability import (
    Reliability,
    reliability_of_day,
    reliability_of_reference,
)
from rlhf_pipeline.drift.stream import StreamWarning
from rlhf_pipeline.drift.wording import badge, best_reachable, listed, named, share
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

    `judged`: columns p, outcome, group, error of the day's votes. `by_group`: their calibration by
    source and category. `over_time`: windows up to the day, the oldest first, or in words why they
    are left out. `errors`: seq, day, error of the model's stream up to the day. `texts`: comparison
    ids -> their prompt and completion a, asked only for the examples. `data_drift`: Evidently's
    report as JSON, `files`: names of what lies beside the page.
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


def html_report(evidence: DayEvidence, params: ClusterParams | None = None) -> str:
    """The page as one HTML document."""
    params, e = params or ClusterParams(), evidence
    rows = e.report.assign(evidence=[json.loads(cell) for cell in e.report["evidence"]])
    clusters = _or_words(lambda: semantic_clusters(e.reference, e.current, params))
    before, today = _calibration(e)
    body = el(
        "body",
        el("a", "To the content", href="#content", class_="skip"),
        _head(e, rows),
        el(
            "main",
            _summary(evidence, rows, clusters, today),
            _part(
                "drift-over-time",
                "1  Drift over time",
                page_parts.drift_over_time(
                    e.day, rows, e.errors, e.events, e.warnings, e.noise_ceiling
                ),
            ),
            _part(
                "semantic-clusters",
                "2  Semantic clusters",
                page_parts.semantic_clusters(clusters, e.texts, params, e.noise_ceiling),
            ),
            _part(
                "calibration",
                "3  Calibration",
                page_parts.calibration(before, today, rows, e.noise_ceiling, e.by_group),
            ),
            _part(
                "calibration-over-time", "Calibration over time", calibration_over_time(e.over_time)
            ),
            _part(
                "data-drift",
                "Lengths, confidence and embeddings",
                page_parts.data_drift(rows, e.data_drift, e.files),
            ),
            id="content",
        ),
        el("footer", el("p", _provenance(e))),
    )
    head = el(
        "head",
        el("meta", charset="utf-8"),
        el("meta", name="viewport", content="width=device-width, initial-scale=1"),
        el("meta", name="color-scheme", content="light dark"),
        el("title", f"Drift report of {e.day}: {_overall(rows)['verdict']} · {e.project}"),
        el("style", STYLE),
    )
    return f"<!doctype html>\n{html(el('html', head, body, lang='en'))}\n"


def _head(evidence: DayEvidence, rows: pd.DataFrame) -> Element:
    overall = _overall(rows)
    said, suspects = (
        overall["evidence"].get("says_drift", []),
        overall["evidence"].get("suspects", []),
    )
    because = (
        f"Says drift: {listed(said)}."
        if said
        else f"Looks different: {', '.join(named(s.replace('/', ' by ')) for s in suspects)}."
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
    return el(
        "header",
        el("p", "Drift report", class_="kicker"),
        el("h1", evidence.day, " ", badge(overall["verdict"])),
        el("p", MEANING[Verdict(overall["verdict"])], class_="lead"),
        el("p", because) if because else None,
        el("dl", (el("div", el("dt", name), el("dd", value)) for name, value in facts.items())),
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


def _summary(
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
            "no votes" if rate is None else share(rate.value),
            "nothing was judged"
            if rate is None
            else f"95 % interval {share(rate.low)} to {share(rate.high)}; "
            f"{best_reachable(evidence.noise_ceiling)}; "
            + ("no reference yet" if before is None else f"reference {share(before)}"),
            _worst(rows[rows["space"] == "errors"]),
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
            _worst(rows[rows["space"] == "calibration"]),
        ),
    ]
    return el(
        "ul",
        (
            el(
                "li",
                el("a", name, href=f"#{target}"),
                el("strong", value),
                el("span", note),
                None if verdict is None else badge(verdict),
            )
            for target, name, value, note, verdict in cards
        ),
        class_="cards",
    )


def _calibration(evidence: DayEvidence) -> tuple[Reliability | str, Reliability | str]:
    window = evidence.reference
    before = (
        "The model has no reference window."
        if window is None
        else _or_words(lambda: reliability_of_reference(window))
    )
    return before, _or_words(lambda: reliability_of_day(evidence.judged))


def _provenance(evidence: DayEvidence) -> str:
    seqs = evidence.errors["seq"]
    read = "" if seqs.empty else f" The error stream is read up to vote {int(seqs.max()):,}."
    return (
        f"Made by rlhf_pipeline from the drift_report of {evidence.day}.{read} The same votes "
        "give the same page."
    )


def _overall(rows: pd.DataFrame) -> Mapping[str, Any]:
    found = records_of(rows[rows["space"] == "overall"])
    if len(found) != 1:
        raise NotEnoughData(
            f"The drift report has {len(found)} overall rows instead of one. Make the report of "
            "the "
            "day again."
        )
    return found[0]


def _worst(rows: pd.DataFrame) -> Verdict | None:
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


def _or_words(make: Callable[[], T]) -> T | str:
    try:
        return make()
    except NotEnoughData as few:
        return str(few)


def _part(name: str, title: str, children: Iterable[Element]) -> Element:
    return el(
        "section",
        el("h2", title, id=f"{name}-title"),
        children,
        id=name,
        aria_labelledby=f"{name}-title",
    )

"""Draws the charts of calibration: later votes, before and after, by group, by calibrator."""

from typing import Literal
from urllib.parse import urlencode

from rlhf_pipeline.core.api_types.filters import Filter
from rlhf_pipeline.core.records import ReliabilityBin
from rlhf_pipeline.reports.calibration import chart_reliability
from rlhf_pipeline.reports.calibrators import (
    OVERALL,
    CalibratorError,
    chart_before_after,
    chart_calibrators,
    chart_dimension_errors,
    chart_group_errors,
)
from rlhf_pipeline.reports.chart import Chart
from rlhf_pipeline.reports.words import name_models
from rlhf_pipeline.store.calibrations import LoggedCalibration
from rlhf_pipeline.web.calibration import queries
from rlhf_pipeline.web.calibration.answers import CalibrationFilter, ProbeOut
from rlhf_pipeline.web.permissions import Permission, Principal
from rlhf_pipeline.web.site import Site

DRAWN = 40  # calibrators
NO_CALIBRATOR = "No calibrator yet. Each reward model gets one from the learning job."
FigureName = Literal[
    "later_votes", "later_groups", "before_after", "groups", "dimensions", "calibrators"
]


def draw(
    site: Site, principal: Principal, figure: FigureName, selection: CalibrationFilter
) -> Chart:
    if figure == "later_votes":
        return _chart_later_votes(site, principal, selection)
    if figure == "later_groups":
        return _chart_later_groups(site, selection)
    if figure == "calibrators":
        return _chart_calibrators(site)
    entry = queries.find_selected(site, selection)
    if entry is None:
        title = "Calibration error and reliability on the test split"
        return _explain(figure, title, NO_CALIBRATOR)
    if figure == "groups":
        return _chart_groups(entry)
    if figure == "dimensions":
        return _chart_dimensions(entry)
    return chart_before_after(entry.report, queries.parts_of(selection))


def format_middle(b: ReliabilityBin) -> str:
    """The stated confidence that names a bin in an address."""
    return f"{(b.low + b.high) / 2:.4f}".rstrip("0")


def _chart_later_votes(site: Site, principal: Principal, selection: CalibrationFilter) -> Chart:
    title = "Reliability before and after calibration, on later votes"
    probe = queries.read_probe(site, selection)
    if probe is None or not probe.bins:
        return _explain("reliability", title, _why_no_probe(probe, selection))

    def link(b: ReliabilityBin) -> str:
        return f"/calibration/pairs?{queries.query_of_selection(selection, bin=format_middle(b))}"

    return chart_reliability(
        {"before": probe.raw_bins, "after": probe.bins},
        probe.noise_ceiling,
        title=f"{title}: {name_models(probe.reward_model or '')}",
        ceiling_name="noise ceiling",
        unit="votes",
        link=link if principal.may(Permission.PREDICTIONS_MAKE) else None,
    )


def _chart_later_groups(site: Site, selection: CalibrationFilter) -> Chart:
    title = "Calibration error (ECE) by category and source, on later votes"
    whole = selection.model_copy(update={"category": None, "source": None})
    probe = queries.read_probe(site, whole)
    if probe is None or not probe.by_group:
        return _explain("calibration-error-by-group", title, _why_no_probe(probe, whole))

    def link(by: str, group: str) -> str:
        return f"/calibration?{queries.query_of_selection(whole, **{by: group})}"

    return chart_group_errors(
        probe.by_group, title=f"{title}: {name_models(probe.reward_model or '')}", link=link
    )


def _why_no_probe(probe: ProbeOut | None, selection: CalibrationFilter) -> str:
    if probe is None:
        return "This report was imported without its calibrator, so no predictions here use it."
    if probe.is_withheld:
        return queries.describe_minimum(selection)
    return "No vote for a side has such a prediction yet."


def _chart_groups(entry: LoggedCalibration) -> Chart:
    report = entry.report
    name = f"{name_models(report.reward_model)}, {report.method}"
    title = f"Calibration error (ECE) by category and source, on the test split: {name}"

    def link(by: str, group: str) -> str:
        return _link_calibrator(report.reward_model, entry.version, {by: group})

    return chart_group_errors(
        report.by_group,
        title=f"{title}: {name_models(report.reward_model)}, {report.method}",
        link=link,
    )


def _chart_dimensions(entry: LoggedCalibration) -> Chart:
    report = entry.report
    title = "Calibration error (ECE) by dimension of the rubric, on the test split"
    title = f"{title}: {name_models(report.reward_model)}"

    def link(by: str, group: str) -> str:
        chosen = {} if group == OVERALL else {by: group}
        return f"{_link_calibrator(report.reward_model, entry.version, chosen)}#test-split"

    return chart_dimension_errors(
        report, title=f"{title}: {name_models(report.reward_model)}", link=link
    )


def _chart_calibrators(site: Site) -> Chart:
    entries = queries.page(site, Filter(limit=DRAWN)).items[::-1]
    return chart_calibrators(
        [
            CalibratorError(
                label=f"{entry.reward_model.rpartition('@')[2]}, {entry.method} {entry.version}",
                name=f"{name_models(entry.reward_model)}, {entry.state}",
                before=entry.raw.ece,
                after=entry.calibrated.ece,
                link=_link_calibrator(entry.reward_model, entry.version),
            )
            for entry in entries
        ]
    )


def _link_calibrator(model: str, version: int, group: dict[str, str] | None = None) -> str:
    return f"/calibration?{urlencode({'model': model, 'version': version} | (group or {}))}"


def _explain(kind: str, title: str, reason: str) -> Chart:
    """A chart without panels, for the reason."""
    return Chart(kind=kind, title=title, alt=title, panels=(), notes=(reason,))

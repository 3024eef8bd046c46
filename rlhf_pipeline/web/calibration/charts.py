"""Routes of the charts of calibration: later votes, before and after, by group, by calibrator."""

from typing import Annotated, Literal
from urllib.parse import urlencode

from fastapi import Depends, Query, Response

from rlhf_pipeline.permissions import Permission, Principal
from rlhf_pipeline.records import ReliabilityBin
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
from rlhf_pipeline.store.calibrations import LoggedCalibration
from rlhf_pipeline.web.calibration import queries
from rlhf_pipeline.web.calibration.queries import CalibrationFilter, ProbeOut
from rlhf_pipeline.web.routing import AnySite, answer_chart, api_router, needs, problem_responses
from rlhf_pipeline.web.site import Site

api = api_router("charts")
Reader = Annotated[Principal, Depends(needs(Permission.METRICS_READ))]
DRAWN = 40  # calibrators
NO_CALIBRATOR = "No calibrator yet. Each reward model gets one from the learning job."

FigureName = Literal[
    "later_votes", "later_groups", "before_after", "groups", "dimensions", "calibrators"
]


Selected = Annotated[CalibrationFilter, Query()]


@api.get(
    "/charts/calibration/{figure}",
    response_model=Chart,
    responses=problem_responses(404),
)
def read_chart(
    site: AnySite, principal: Reader, figure: FigureName, selection: Selected
) -> Response:
    """Reliability and calibration error before and after calibration. `later_votes` and
    `later_groups` compare predictions with votes that came after them: the curve, and the error by
    category and source. `before_after` and `groups` do so on the test split of a calibrator, and
    `dimensions` shows the error there of the reward model's head of each dimension of the rubric
    beside that of its score; `calibrators` shows the errors of the last 40 calibrators.

    `dimension` adds the curves of one head to `before_after`; other figures ignore it.

    `model` is a reward model as name@version, `version` the number of one of its calibrators.
    Without them: the model that predicted last through any calibrator, and on the test split the
    calibrator that the champion predicts through. `group` (of annotators), `since` and `until`
    choose later votes. Chosen votes on fewer than 10 comparisons are withheld, and those of a group
    in which fewer than 3 annotators voted.
    """
    if figure == "later_votes":
        chart = _chart_later_votes(site, principal, selection)
    elif figure == "later_groups":
        chart = _chart_later_groups(site, selection)
    elif figure == "calibrators":
        chart = _chart_calibrators(site)
    else:
        shown = queries.find_shown(site, selection)
        if shown is None:
            title = "Calibration error and reliability on the test split"
            chart = _explain(figure, title, NO_CALIBRATOR)
        elif figure == "groups":
            chart = _chart_groups(shown)
        elif figure == "dimensions":
            chart = _chart_dimensions(shown)
        else:
            chart = chart_before_after(shown.report, queries.parts_of(selection))
    return answer_chart(chart)


def format_middle(b: ReliabilityBin) -> str:
    """The stated confidence that names a bin in an address."""
    return f"{(b.low + b.high) / 2:.4f}".rstrip("0")


def _chart_later_votes(site: Site, principal: Principal, selection: CalibrationFilter) -> Chart:
    title = "Reliability before and after calibration, on later votes"
    probe = _read_probe(site, selection)
    if probe is None or not probe.bins:
        return _explain("reliability", title, _why_no_probe(probe, selection))

    def link(b: ReliabilityBin) -> str:
        return f"/calibration/pairs?{queries.query_of_selection(selection, bin=format_middle(b))}"

    return chart_reliability(
        {"before": probe.raw_bins, "after": probe.bins},
        probe.noise_ceiling,
        title=f"{title}: {probe.reward_model}",
        ceiling_name="noise ceiling",
        unit="votes",
        link=link if principal.may(Permission.PREDICTIONS_MAKE) else None,
    )


def _chart_later_groups(site: Site, selection: CalibrationFilter) -> Chart:
    title = "Calibration error (ECE) by category and source, on later votes"
    whole = selection.model_copy(update={"category": None, "source": None})
    probe = _read_probe(site, whole)
    if probe is None or not probe.by_group:
        return _explain("calibration-error-by-group", title, _why_no_probe(probe, whole))

    def link(by: str, group: str) -> str:
        return f"/calibration?{queries.query_of_selection(whole, **{by: group})}"

    return chart_group_errors(probe.by_group, title=f"{title}: {probe.reward_model}", link=link)


def _read_probe(site: Site, selection: CalibrationFilter) -> ProbeOut | None:
    """None for an imported calibrator, through which nothing here is predicted."""
    chosen = queries.find_chosen(site, selection)
    if chosen is not None and chosen.is_imported:
        return None
    return queries.probe_of(site, queries.build_probe_query(selection, chosen))


def _why_no_probe(probe: ProbeOut | None, selection: CalibrationFilter) -> str:
    if probe is None:
        return "This report was imported without its calibrator, so no predictions here use it."
    if probe.is_withheld:
        return f"Withheld: {queries.describe_minimum(selection)}."
    return "No vote for a side has such a prediction yet."


def _chart_groups(shown: LoggedCalibration) -> Chart:
    report = shown.report
    title = "Calibration error (ECE) by category and source, on the test split"

    def link(by: str, group: str) -> str:
        return _link_calibrator(report.reward_model, shown.version, {by: group})

    return chart_group_errors(
        report.by_group, title=f"{title}: {report.reward_model}, {report.method}", link=link
    )


def _chart_dimensions(shown: LoggedCalibration) -> Chart:
    report = shown.report
    title = "Calibration error (ECE) by dimension of the rubric, on the test split"

    def link(by: str, group: str) -> str:
        chosen = {} if group == OVERALL else {by: group}
        return f"{_link_calibrator(report.reward_model, shown.version, chosen)}#test-split"

    return chart_dimension_errors(report, title=f"{title}: {report.reward_model}", link=link)


def _chart_calibrators(site: Site) -> Chart:
    entries = queries.page(site, cursor=None, limit=DRAWN).items[::-1]
    return chart_calibrators(
        [
            CalibratorError(
                label=f"@{one.reward_model.rpartition('@')[2]} {one.method}@{one.version}",
                name=f"{one.reward_model}, {one.state}",
                before=one.raw.ece_debiased,
                after=one.calibrated.ece_debiased,
                link=_link_calibrator(one.reward_model, one.version),
            )
            for one in entries
        ]
    )


def _link_calibrator(model: str, version: int, group: dict[str, str] | None = None) -> str:
    return f"/calibration?{urlencode({'model': model, 'version': version} | (group or {}))}"


def _explain(kind: str, title: str, reason: str) -> Chart:
    """A chart without panels, for the reason."""
    return Chart(kind=kind, title=title, alt=title, panels=(), notes=(reason,))

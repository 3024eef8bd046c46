"""Routes of alignment: metric points of accuracy, calibration and drift, as a chart and a page."""

from typing import Annotated

from fastapi import APIRouter, Depends, Query, Request, Response

from rlhf_pipeline.core.api_types.filters import GroupFilter
from rlhf_pipeline.reports.chart import Chart
from rlhf_pipeline.reports.versions import VERSION_METRICS, chart_versions
from rlhf_pipeline.web.alignment import queries
from rlhf_pipeline.web.permissions import Permission, Principal
from rlhf_pipeline.web.rendering import render
from rlhf_pipeline.web.routing import AnySite, Days, answer_chart, api_router, needs

api, pages = api_router("charts"), APIRouter()
Reader = Annotated[Principal, Depends(needs(Permission.METRICS_READ))]


Chosen = Annotated[GroupFilter, Query()]


@api.get("/charts/alignment", response_model=Chart)
def read_chart(site: AnySite, principal: Reader, chosen: Chosen) -> Response:
    """Accuracy beside its noise ceiling, calibration error and slope, and the drift verdict of each
    space, by day: the metric points of those names. `model` is a reward model as name@version.
    One of `category`, `source` and `group` (of annotators) chooses the figures of that group,
    without drift; groups of fewer than 10 judged comparisons or 3 annotators have none. Without
    `until`, up to the newest day with figures; without `since`, 90 days.
    """
    may_read_votes = principal.may(Permission.VOTES_READ)
    return answer_chart(queries.build_chart(site, chosen, may_read_votes=may_read_votes))


@api.get("/charts/accuracy", response_model=Chart)
def read_accuracy(site: AnySite, principal: Reader, days: Days) -> Response:
    """Accuracy of each day beside the noise ceiling of its votes, with the mean of several days.
    Without `until`, up to the newest day with figures; without `since`, 30 days.
    """
    may_read_votes = principal.may(Permission.VOTES_READ)
    chart = queries.build_accuracy(site, days, may_read_votes=may_read_votes)
    return answer_chart(chart)


@api.get("/charts/versions", response_model=Chart)
def read_versions(site: AnySite, _: Reader, chosen: Chosen) -> Response:
    """Accuracy beside its noise ceiling, and calibration error, of the last versions of the reward
    model on the same held-out votes, as the newest `calibration` measured them. With `model`, a
    reward model as name@version, only that one; the other filters choose nothing here.
    """
    points = site.store.metric_points.latest(VERSION_METRICS)
    return answer_chart(chart_versions(points, chosen.model))


@pages.get("/alignment")
def show_page(site: AnySite, request: Request, principal: Reader, chosen: Chosen) -> Response:
    newest, figures = queries.read_newest(site, chosen)
    problem = queries.ONE_GROUP if len(queries.groups_of(chosen)) > 1 else None
    return render(
        "alignment/page.html",
        request,
        site,
        principal,
        status=422 if problem else 200,
        newest=newest,
        figures=figures,
        filters=chosen.chosen,
        left_out=chosen.find_left_out(site.drift_reports.find_days()),
        groups=queries.groups_of(chosen),
        problem=problem,
        choices=queries.choices_of_filters(site),
    )

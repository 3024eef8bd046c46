"""Routes of alignment: metric points of accuracy, calibration and drift, as a chart and a page."""

from datetime import date
from typing import Annotated

from fastapi import APIRouter, Depends, Request, Response

from rlhf_pipeline.monitoring import MetricPoint
from rlhf_pipeline.permissions import Permission
from rlhf_pipeline.reports.alignment import (
    ACCURACY,
    ALIGNMENT_METRICS,
    CEILING,
    VERDICT,
    chart_accuracy,
    chart_alignment,
)
from rlhf_pipeline.reports.chart import Chart
from rlhf_pipeline.reports.versions import VERSION_METRICS, chart_versions
from rlhf_pipeline.web.auth import Principal
from rlhf_pipeline.web.blindness import needs_all_votes
from rlhf_pipeline.web.changed_days import find_taste_changes
from rlhf_pipeline.web.charts import UNCHANGED, ChartFilter, Days, answer_chart
from rlhf_pipeline.web.dependencies import AnySite
from rlhf_pipeline.web.rendering import render
from rlhf_pipeline.web.routing import api_router
from rlhf_pipeline.web.site import Site

api, pages = api_router("charts"), APIRouter()
Reader = Annotated[
    Principal, Depends(needs_all_votes(Permission.METRICS_READ, "the figures of a day"))
]
OF_MODEL = [name for name in ALIGNMENT_METRICS if name != VERDICT]


@api.get("/charts/alignment", response_model=Chart, responses=UNCHANGED)
def read_chart(
    site: AnySite, request: Request, principal: Reader, days: Days, model: ChartFilter = None
) -> Response:
    """Accuracy beside its noise ceiling, calibration error and slope, and the drift verdict of each
    space, by day: the metric points of those names. `model` is a reward model as name@version.
    Without `until`, up to the newest day with figures; without `since`, 90 days.
    """
    first, last = days.resolve(_find_newest_day(site))
    points = _read_points(site, first, last, model)
    if days.since is None:
        first = min((point.day for point in points), default=first)
    link = _link_votes if principal.may(Permission.VOTES_READ) else None
    changes = find_taste_changes(site.store)
    return answer_chart(request, chart_alignment(points, first, last, link, changes))


@api.get("/charts/accuracy", response_model=Chart, responses=UNCHANGED)
def read_accuracy(site: AnySite, request: Request, _: Reader, days: Days) -> Response:
    """Accuracy beside its noise ceiling by day. Without `until`, up to the newest day with figures;
    without `since`, 30 days.
    """
    first, last = days.resolve(_find_newest_day(site), n_days=30)
    points = site.store.metric_points.read((ACCURACY, CEILING), since=first, until=last)
    if days.since is None:
        first = min((point.day for point in points), default=first)
    changes = find_taste_changes(site.store)
    return answer_chart(request, chart_accuracy(points, first, last, changes))


@api.get("/charts/versions", response_model=Chart, responses=UNCHANGED)
def read_versions(site: AnySite, request: Request, _: Reader) -> Response:
    """Accuracy beside its noise ceiling, and calibration error, of the last versions of the reward
    model on the same held-out votes, as the newest `calibration` measured them.
    """
    return answer_chart(request, chart_versions(site.store.metric_points.latest(VERSION_METRICS)))


@pages.get("/alignment")
def show_page(
    site: AnySite, request: Request, principal: Reader, days: Days, model: ChartFilter = None
) -> Response:
    latest = site.store.metric_points.latest(OF_MODEL)
    newest = max((point.day for point in latest), default=None)
    return render(
        "alignment/page.html",
        request,
        site,
        principal,
        newest=newest,
        figures={point.name: point for point in latest if point.day == newest},
        filters={"since": days.since, "until": days.until, "model": model},
        models=sorted({point.labels["reward_model"] for point in latest}),
    )


def _link_votes(day: date) -> str:
    return f"/votes?day={day}"


def _find_newest_day(site: Site) -> date | None:
    newest, _ = site.store.metric_points.page(ALIGNMENT_METRICS, limit=1)
    return newest[0].day if newest else None


def _read_points(site: Site, first: date, last: date, model: str | None) -> list[MetricPoint]:
    """With a model, its figures and the verdicts of its days."""
    points = site.store.metric_points.read(ALIGNMENT_METRICS, since=first, until=last)
    if model is None:
        return points
    of_model = [point for point in points if point.labels.get("reward_model") == model]
    its_days = {point.day for point in of_model}
    return of_model + [p for p in points if p.name == VERDICT and p.day in its_days]

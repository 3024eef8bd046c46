"""Routes of production: applications send figures, which a chart and a page show."""

from datetime import date, timedelta
from typing import Annotated

from fastapi import APIRouter, Depends, Query, Request, Response
from pydantic import Field

from rlhf_pipeline.core.api_types.filters import DayFilter, Value
from rlhf_pipeline.core.api_types.production import (
    NewProductionFigures,
    ProductionFigure,
    StoredFigures,
)
from rlhf_pipeline.core.metric_catalogue import METRICS, PRODUCTION
from rlhf_pipeline.reports.chart import Chart
from rlhf_pipeline.reports.production import chart_production
from rlhf_pipeline.watch.metrics import build_production_point
from rlhf_pipeline.web.permissions import Permission, Principal
from rlhf_pipeline.web.problems import Problem
from rlhf_pipeline.web.rendering import render
from rlhf_pipeline.web.routing import AnySite, answer_chart, api_router, needs
from rlhf_pipeline.web.site import Site

api, pages = api_router("metrics"), APIRouter()
Writer = Annotated[Principal, Depends(needs(Permission.METRICS_WRITE))]
Reader = Annotated[Principal, Depends(needs(Permission.METRICS_READ))]


class ModelFilter(DayFilter):
    """Which versions of models, by day."""

    model: Value = Field(default=None, description="Name of a model, or a version as name@version.")

    def takes(self, label: str, day: date) -> bool:
        """Whether it chooses the version `label` of a day."""
        return self.includes(day) and self.model in (None, label, label.rpartition("@")[0])


Chosen = Annotated[ModelFilter, Query()]


@api.post("/metrics/production")
def send(site: AnySite, principal: Writer, body: NewProductionFigures) -> StoredFigures:
    """Store figures of models in production as metric points. A figure replaces that of the same
    day, metric and model, so a day's sums so far can be sent again and again. All figures are
    stored or none; an invalid one is named by its place in the list.
    """
    _check_figures(site, body.figures)
    now = site.store.database.clock.now()
    points = [build_production_point(figure, now) for figure in body.figures]
    site.store.metric_points.put(points, actor=principal.user_id)
    return StoredFigures(n=len(body.figures))


@api.get("/charts/production", response_model=Chart, tags=["charts"])
def read_chart(site: AnySite, _: Reader, chosen: Chosen) -> Response:
    """Quality, satisfaction, latency, errors, deflected interactions, time to resolve, adoption and
    cost of models in production, by day. Without `until`, up to the newest day with figures;
    without `since`, 90 days.
    """
    site.measure_answers()
    labels = {"model": chosen.model} if chosen.model else None
    first, last = chosen.resolve(_find_newest_day(site, labels))
    points = site.store.metric_points.read(PRODUCTION, since=first, until=last, labels=labels)
    if chosen.since is None:
        first = min((point.day for point in points), default=first)
    return answer_chart(chart_production(points, first, last))


@pages.get("/production")
def show_page(site: AnySite, request: Request, principal: Reader, chosen: Chosen) -> Response:
    site.measure_answers()
    latest = site.store.metric_points.latest(PRODUCTION)
    deployed = site.store.promotions.champion(f"{site.settings.project}.policy")
    models = sorted({point.labels["model"] for point in latest})
    newest = max(latest, key=lambda point: (point.day, point.labels["model"]), default=None)
    deployed_label = deployed.label if deployed and deployed.label in models else None
    model = chosen.model or deployed_label or (newest.labels["model"] if newest else "")
    return render(
        "production/page.html",
        request,
        site,
        principal,
        models=models,
        model=model,
        figures=sorted(
            (point for point in latest if point.labels["model"] == model),
            key=lambda point: PRODUCTION.index(point.name),
        ),
        units={name: METRICS[name].unit for name in PRODUCTION},
        filters=chosen.chosen,
        left_out=chosen.find_left_out(site.store.metric_points.find_days(PRODUCTION)),
    )


def _check_figures(site: Site, figures: list[ProductionFigure]) -> None:
    """Raises Problem 422 that names figures of days to come and repeated ones."""
    tomorrow = site.store.database.clock.now().date() + timedelta(days=1)
    places: dict[tuple[date, str, str], int] = {}
    errors = []
    for i, figure in enumerate(figures):
        path = f"body.figures.{i}"
        if figure.day > tomorrow:
            errors.append((f"{path}.day", f"{figure.day} has not begun; correct the date"))
        first = places.setdefault((figure.day, figure.metric, figure.model), i)
        if first != i:
            errors.append((path, f"repeats day, metric and model of body.figures.{first}"))
    if errors:
        path, message = errors[0]
        raise Problem(422, f"{path}: {message}.", kind="invalid", errors=errors)


def _find_newest_day(site: Site, labels: dict[str, str] | None) -> date | None:
    newest, _ = site.store.metric_points.page(PRODUCTION, labels=labels, limit=1)
    return newest[0].day if newest else None

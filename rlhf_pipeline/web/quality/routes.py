"""Routes of data quality: a list of annotators, a page and charts of each, and a file."""

from typing import Annotated, Literal, get_args

from fastapi import APIRouter, Depends, Query, Request, Response

from rlhf_pipeline.core.api_types.base import Page
from rlhf_pipeline.reports.chart import Chart
from rlhf_pipeline.web.lists import (
    FilterField,
    RowList,
    page_filter,
    show_list,
)
from rlhf_pipeline.web.permissions import Permission, Principal
from rlhf_pipeline.web.problems import Problem
from rlhf_pipeline.web.quality import queries
from rlhf_pipeline.web.quality.queries import AnnotatorQuality, QualityFilter, QualityOut
from rlhf_pipeline.web.quality.week_reader import AnnotatorFilter, draw_weeks
from rlhf_pipeline.web.rendering import names_for, render
from rlhf_pipeline.web.routing import AnySite, answer_chart, api_router, needs
from rlhf_pipeline.web.site import Site

api, charts = api_router("quality"), api_router("charts")
pages = APIRouter()
Reader = Annotated[Principal, Depends(needs(Permission.VOTES_READ))]
FigureName = Literal["speed", "sides", "gold", "agreement"]
Chosen = Annotated[AnnotatorFilter, Query()]
Asked = Annotated[QualityFilter, Query()]
Shown = Annotated[QualityFilter, page_filter(QualityFilter)]
SHOWN = 50
WORDS: dict[str, str] = {
    "too_fast": "too fast to read",
    "same_as_before": "same side as before",
    "duplicate": "duplicate pair",
}
SORTS: dict[str, str] = {
    "doubt": "most doubtful",
    "votes": "most judgements",
    "name": "name",
}


def _read_page(site: Site, principal: Principal, filters: QualityFilter) -> Page[AnnotatorQuality]:
    quality = queries.project_quality(site, principal, filters)
    return Page(items=quality.annotators, next=quality.next)


QUALITY = RowList(
    "Data quality",
    "/quality",
    "quality/page.html",
    AnnotatorQuality,
    key="annotator_id",
    read=_read_page,
    fields=lambda *_: [
        FilterField("q", "Annotator", "search"),
        FilterField("sort", "Order", choices=SORTS | WORDS, default="doubt"),
    ],
    describe=lambda *_: {"marks": WORDS},
    count=lambda site: len(site.quality()),
)


@api.get("/quality")
def read(site: AnySite, principal: Reader, filters: Asked) -> QualityOut:
    """Marked votes per annotator: too fast, same side as before, or duplicate pair, each with an
    interval. `GET votes` with `mark` lists the votes. Of the newest 10,000 votes; those by machines
    are not counted."""
    return queries.project_quality(site, principal, filters)


@charts.get("/charts/annotator/{figure}", response_model=Chart)
def read_chart(
    site: AnySite,
    _: Reader,
    figure: FigureName,
    chosen: Chosen,
) -> Response:
    """One annotator by week: speed, sides, known answers, or agreement with others and with
    themselves. Weeks with fewer than 5 such votes are
    withheld. Without `until`, up to the annotator's newest vote; without `since`, 90 days.
    """
    return answer_chart(draw_weeks(site.store, figure, chosen))


@pages.get("/quality")
def show_page(site: AnySite, request: Request, principal: Reader, filters: Shown) -> Response:
    if "limit" not in filters.model_fields_set:
        filters = filters.at(filters.cursor, SHOWN)
    return show_list(QUALITY, request, site, principal, filters)


@pages.get("/quality/annotator")
def show_annotator(
    site: AnySite,
    request: Request,
    principal: Reader,
    chosen: Chosen,
) -> Response:
    annotator_id = chosen.annotator_id
    days = site.store.votes.day_span(annotator_id)
    name = names_for(site, principal).get(annotator_id)
    if not days and name is None:
        raise Problem(
            404, f"No user or annotator {annotator_id!r} in this project.", kind="not_found"
        )
    return render(
        "quality/annotator.html",
        request,
        site,
        principal,
        annotator_id=annotator_id,
        annotator_name=name,
        newest=max(days, default=None),
        one=queries.annotator_quality(site, principal, annotator_id),
        marks=WORDS,
        filters=chosen.chosen,
        left_out=chosen.find_left_out(days),
        figures=get_args(FigureName),
    )

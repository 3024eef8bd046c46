"""Routes of drift events: what the detectors reported, and which decision claimed it."""

from typing import Annotated

from fastapi import APIRouter, Depends, Query, Request, Response

from rlhf_pipeline.core.api_types.base import Page
from rlhf_pipeline.core.api_types.filters import DriftEventFilter
from rlhf_pipeline.improve.retraining.messages import format_figures
from rlhf_pipeline.reports.words import display_name, name_figure, name_stream
from rlhf_pipeline.web.decisions.answers import DriftEventOut
from rlhf_pipeline.web.lists import (
    FilterField,
    ListPage,
    RowList,
    make_cursor,
    page_filter,
    parse_cursor,
    render_list,
    send_csv,
    wants_csv,
)
from rlhf_pipeline.web.permissions import Permission, Principal
from rlhf_pipeline.web.routing import AnySite, api_router, needs

api, pages = api_router("drift-events"), APIRouter()
Reader = Annotated[Principal, Depends(needs(Permission.METRICS_READ))]
Asked = Annotated[DriftEventFilter, Query()]
Shown = Annotated[DriftEventFilter, page_filter(DriftEventFilter)]
EVENTS = RowList(
    "Drift events", "/drift-events", "drift_events/page.html", DriftEventOut, key="event_id"
)
FIELDS = (
    FilterField("day", "Day", "day"),
    FilterField("is_open", "Show", choices={"": "all", "true": "without a decision"}),
    FilterField("decision_id", "decision", "given"),
)


@api.get("/drift-events")
def read_all(site: AnySite, _: Reader, filters: Asked) -> Page[DriftEventOut]:
    """Drift and calibration events, those of the newest votes first."""
    place = parse_cursor(filters.cursor, int, str)
    rows = site.store.events.page(filters, before=(place[0], place[1]) if place else None)
    times = site.store.votes.times(row.event.change_seq for row in rows)
    last = rows[-1].event if len(rows) == filters.limit else None
    return Page(
        items=tuple(
            DriftEventOut(
                **row.event.model_dump(),
                changed_at=times.get(row.event.change_seq or 0),
                decision_id=row.decision_id,
            )
            for row in rows
        ),
        next=make_cursor(last.seq, last.event_id) if last else None,
    )


@pages.get("/drift-events")
def show_page(site: AnySite, request: Request, principal: Reader, filters: Shown) -> Response:
    if wants_csv(request):
        return send_csv(EVENTS, filters, lambda part: read_all(site, principal, part))
    page = read_all(site, principal, filters)
    newest = read_all(site, principal, DriftEventFilter(limit=1)).items
    return render_list(
        EVENTS,
        request,
        site,
        principal,
        ListPage(filters, page, FIELDS),
        newest=newest[0] if newest else None,
        n_open=len(site.store.events.find_open()),
        figures={item.event_id: format_figures(item.evidence) for item in page.items},
        display=display_name,
        name_figure=name_figure,
        name_stream=name_stream,
    )

"""Routes of drift events: what the detectors reported, and which decision claimed it."""

from datetime import date
from typing import Annotated

from fastapi import APIRouter, Depends, Query, Request, Response
from pydantic import BeforeValidator

from rlhf_pipeline.api_types.base import Page
from rlhf_pipeline.api_types.drift import DriftEventOut
from rlhf_pipeline.permissions import Permission
from rlhf_pipeline.reports.words import display_name, name_figure, name_stream
from rlhf_pipeline.retraining.messages import format_figures
from rlhf_pipeline.web.auth import Principal
from rlhf_pipeline.web.charts import Day
from rlhf_pipeline.web.dependencies import AnySite, needs
from rlhf_pipeline.web.pagination import Cursor, Limit, make_cursor, parse_cursor
from rlhf_pipeline.web.rendering import query_of, render
from rlhf_pipeline.web.routing import api_router
from rlhf_pipeline.web.site import Site

api, pages = api_router("drift-events"), APIRouter()
Reader = Annotated[Principal, Depends(needs(Permission.METRICS_READ))]
OfDecision = Annotated[
    Annotated[int, Query(ge=1, le=10**9)] | None,
    BeforeValidator(lambda value: value or None),
    Query(description="Only events that this decision claimed."),
]
IsOpen = Annotated[bool, Query(description="Only events that no decision has claimed.")]
SHOWN = 50


@api.get("/drift-events")
def read_all(
    site: AnySite,
    _: Reader,
    day: Day = None,
    decision_id: OfDecision = None,
    is_open: IsOpen = False,
    cursor: Cursor = None,
    limit: Limit = 50,
) -> Page[DriftEventOut]:
    """Drift and calibration events, those of the newest votes first."""
    return _read(site, day, decision_id, is_open, cursor, limit)


@pages.get("/drift-events")
def show_page(
    site: AnySite,
    request: Request,
    principal: Reader,
    day: Day = None,
    decision_id: OfDecision = None,
    is_open: IsOpen = False,
    cursor: Cursor = None,
) -> Response:
    filters = {
        "day": str(day or ""),
        "decision_id": str(decision_id or ""),
        "is_open": "true" if is_open else "",
    }
    page = _read(site, day, decision_id, is_open, cursor, SHOWN)
    return render(
        "drift_events/page.html",
        request,
        site,
        principal,
        page=page,
        figures={each.event_id: format_figures(each.evidence) for each in page.items},
        display=display_name,
        name_figure=name_figure,
        name_stream=name_stream,
        filters=filters,
        query=query_of(filters),
    )


def _read(
    site: Site,
    day: date | None,
    decision_id: int | None,
    is_open: bool,
    cursor: str | None,
    limit: int,
) -> Page[DriftEventOut]:
    place = parse_cursor(cursor, int, str)
    found = site.store.events.page(
        day=day.isoformat() if day else None,
        decision_id=decision_id,
        is_open=is_open,
        before=(place[0], place[1]) if place else None,
        limit=limit,
    )
    times = site.store.votes.times(each.event.change_seq for each in found)
    last = found[-1].event if len(found) == limit else None
    return Page(
        items=tuple(
            DriftEventOut(
                **each.event.model_dump(),
                event_id=each.event.event_id,
                changed_at=times.get(each.event.change_seq or 0),
                decision_id=each.decision_id,
            )
            for each in found
        ),
        next=make_cursor(last.seq, last.event_id) if last else None,
    )

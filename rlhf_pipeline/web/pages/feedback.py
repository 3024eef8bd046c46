"""Feedback from where a model is used, as a page. Knows filters; entries come by the API alone."""

from typing import Annotated

from fastapi import APIRouter, Depends, Query, Request, Response

from rlhf_pipeline.records import Feedback
from rlhf_pipeline.web.auth import Principal
from rlhf_pipeline.web.dependencies import AnySite, needs
from rlhf_pipeline.web.pages.downloads import AT_ONCE, csv_of, every
from rlhf_pipeline.web.pages.rendering import names_for, query_of, render
from rlhf_pipeline.web.paging import Cursor, cursor_of, place_of
from rlhf_pipeline.web.permissions import Permission
from rlhf_pipeline.web.schemas import Page
from rlhf_pipeline.web.site import Site

router = APIRouter()
Reader = Annotated[Principal, Depends(needs(Permission.FEEDBACK_READ))]
KINDS = ("thumbs", "rating", "correction", "detailed")
SHOWN = 50


class Filters:
    """What the address asks for; empty means all."""

    def __init__(self, kind: Annotated[str, Query(max_length=20)] = "", session_id: Annotated[str, Query(max_length=200)] = ""):
        self.kind = kind if kind in KINDS else ""
        self.session_id = session_id.replace("\x00", "")

    @property
    def query(self) -> str:
        return query_of(vars(self))

    def page(self, site: Site, cursor: str | None, limit: int) -> Page[Feedback]:
        place = place_of(cursor, int)
        before = place[0] if place else None
        found = site.store.feedback.page(before_id=before, kind=self.kind or None, session_id=self.session_id or None, limit=limit)
        return Page(items=found, next=cursor_of(found[-1].feedback_id) if len(found) == limit else None)


@router.get("/feedback")
def read(site: AnySite, request: Request, principal: Reader, filters: Annotated[Filters, Depends()], cursor: Cursor = None) -> Response:
    return render(
        "feedback.html",
        request,
        site,
        principal,
        page=filters.page(site, cursor, SHOWN),
        filters=filters,
        query=filters.query,
        kinds=KINDS,
        names=names_for(site, principal),
    )


@router.get("/feedback.csv", dependencies=[Depends(needs(Permission.FEEDBACK_READ))])
def download(site: AnySite, filters: Annotated[Filters, Depends()]) -> Response:
    rows = every(lambda cursor: filters.page(site, cursor, AT_ONCE))
    return csv_of("feedback", list(Feedback.model_fields), rows)

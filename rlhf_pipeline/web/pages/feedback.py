"""Feedback from where a model is used, as a page. Knows filters; entries come by the API alone."""

from typing import Annotated

from fastapi import APIRouter, Depends, Query, Request, Response

from rlhf_pipeline.api_types.base import Page
from rlhf_pipeline.permissions import Permission
from rlhf_pipeline.records import Feedback
from rlhf_pipeline.web import lists
from rlhf_pipeline.web.auth import Principal
from rlhf_pipeline.web.blindness import blind_reader_id
from rlhf_pipeline.web.dependencies import AnySite, needs
from rlhf_pipeline.web.pages.downloads import AT_ONCE, csv_of, read_all_pages
from rlhf_pipeline.web.pages.rendering import names_for, query_of, render
from rlhf_pipeline.web.pagination import Cursor
from rlhf_pipeline.web.site import Site

router = APIRouter()
Reader = Annotated[Principal, Depends(needs(Permission.FEEDBACK_READ))]
KINDS = ("thumbs", "rating", "correction", "detailed")
SHOWN = 50


class FeedbackFilters:
    """What the address asks for; empty means all."""

    def __init__(
        self,
        kind: Annotated[str, Query(max_length=20)] = "",
        session_id: Annotated[str, Query(max_length=200)] = "",
    ):
        self.kind = kind if kind in KINDS else ""
        self.session_id = session_id.replace("\x00", "")

    @property
    def query(self) -> str:
        return query_of(vars(self))

    def page(
        self, site: Site, principal: Principal, cursor: str | None, limit: int
    ) -> Page[Feedback]:
        return lists.feedback(
            site,
            principal,
            kind=self.kind or None,
            session_id=self.session_id or None,
            cursor=cursor,
            limit=limit,
        )


@router.get("/feedback")
def read(
    site: AnySite,
    request: Request,
    principal: Reader,
    filters: Annotated[FeedbackFilters, Depends()],
    cursor: Cursor = None,
) -> Response:
    sees_all = blind_reader_id(principal) is None
    return render(
        "feedback.html",
        request,
        site,
        principal,
        told=None
        if sees_all
        else "Others' corrections of what you have not judged yourself are left out: who votes "
        "judges first.",
        page=filters.page(site, principal, cursor, SHOWN),
        # "nothing was sent" is said to those alone who would see it
        is_later=cursor is not None or not sees_all,
        filters=filters,
        query=filters.query,
        kinds=KINDS,
        names=names_for(site, principal),
    )


@router.get("/feedback.csv")
def download(
    site: AnySite, principal: Reader, filters: Annotated[FeedbackFilters, Depends()]
) -> Response:
    rows = read_all_pages(lambda cursor: filters.page(site, principal, cursor, AT_ONCE))
    return csv_of("feedback", list(Feedback.model_fields), rows)

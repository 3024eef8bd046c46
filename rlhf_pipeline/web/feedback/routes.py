"""Routes of feedback: send it, list it, download it."""

from datetime import UTC, datetime, time
from typing import Annotated, Literal

from fastapi import APIRouter, Depends, Path, Query, Request, Response

from rlhf_pipeline.api_types.base import LARGEST, Page
from rlhf_pipeline.datasets.pseudonyms import Pseudonyms
from rlhf_pipeline.permissions import Permission
from rlhf_pipeline.records import AnnotatorKind, Feedback, NewFeedback
from rlhf_pipeline.web.auth import Principal
from rlhf_pipeline.web.dependencies import AnySite, needs
from rlhf_pipeline.web.downloads import AT_ONCE, csv_of, read_all_pages
from rlhf_pipeline.web.idempotency import OptionalKey
from rlhf_pipeline.web.pagination import Cursor, Limit, make_cursor, parse_cursor
from rlhf_pipeline.web.problems import Problem
from rlhf_pipeline.web.rendering import names_for, query_of, render
from rlhf_pipeline.web.routing import api_router
from rlhf_pipeline.web.site import Site

api = api_router("feedback")
pages = APIRouter()
Sender = Annotated[Principal, Depends(needs(Permission.FEEDBACK_SEND))]
Reader = Annotated[Principal, Depends(needs(Permission.FEEDBACK_READ))]
KINDS = ("thumbs", "rating", "correction", "detailed")
SHOWN = 50


@api.post("/feedback", status_code=201)
def send(site: AnySite, principal: Sender, body: NewFeedback, key: OptionalKey = None) -> Feedback:
    """Record feedback. A correction becomes a comparison with its author's vote for the corrected
    text, which training uses. A service account names the author in `author`; without it the vote
    counts as a machine's, which training does not use."""
    _check_time(site, body)
    is_person = principal.user.kind == "person"
    if body.author is not None:
        if is_person:
            said = (
                "is for service accounts that send feedback of others; leave it out, your feedback "
                "is your own"
            )
            raise Problem(422, f"author {said}.", kind="invalid", errors=[("body.author", said)])
        body = body.model_copy(update={"author": Pseudonyms.load(site.settings.home)(body.author)})
    kind = AnnotatorKind.HUMAN if is_person or body.author is not None else AnnotatorKind.MACHINE
    return site.store.feedback.add(
        body, created_by=principal.user_id, annotator_kind=kind, idempotency_key=key
    )


@api.get("/feedback")
def read_all(
    site: AnySite,
    principal: Reader,
    kind: Literal["thumbs", "rating", "correction", "detailed"] | None = None,
    session_id: Annotated[str | None, Query(max_length=200)] = None,
    created_by: Annotated[str | None, Query(max_length=200)] = None,
    cursor: Cursor = None,
    limit: Limit = 50,
) -> Page[Feedback]:
    """Feedback, newest first."""
    return _list_feedback(
        site,
        principal,
        kind=kind,
        session_id=session_id,
        created_by=created_by,
        cursor=cursor,
        limit=limit,
    )


@api.get("/feedback/{feedback_id}")
def read(
    site: AnySite, principal: Reader, feedback_id: Annotated[int, Path(ge=1, le=LARGEST)]
) -> Feedback:
    """One feedback entry."""
    return _read_entry(site, principal, feedback_id)


def _check_time(site: Site, sent: NewFeedback) -> None:
    """A correction's vote is filed under its day, which must be one of the project's."""
    if sent.given_at is None:
        return
    # Compared as timestamps: near either end of the calendar a UTC date may not exist.
    if (
        not datetime.combine(site.settings.start_day, time(), UTC)
        <= sent.given_at
        <= site.store.database.clock.now()
    ):
        said = (
            f"is {sent.given_at}: it must lie between the project's first day, "
            f"{site.settings.start_day}, and now"
        )
        raise Problem(422, f"given_at {said}.", kind="invalid", errors=[("body.given_at", said)])


class FeedbackFilters:
    """Filters from the URL; empty means all."""

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
        return _list_feedback(
            site,
            principal,
            kind=self.kind or None,
            session_id=self.session_id or None,
            cursor=cursor,
            limit=limit,
        )


@pages.get("/feedback")
def show_page(
    site: AnySite,
    request: Request,
    principal: Reader,
    filters: Annotated[FeedbackFilters, Depends()],
    cursor: Cursor = None,
) -> Response:
    return render(
        "feedback/page.html",
        request,
        site,
        principal,
        page=filters.page(site, principal, cursor, SHOWN),
        is_later=cursor is not None,
        filters=filters,
        query=filters.query,
        kinds=KINDS,
        names=names_for(site, principal),
    )


@pages.get("/feedback.csv")
def download(
    site: AnySite, principal: Reader, filters: Annotated[FeedbackFilters, Depends()]
) -> Response:
    rows = read_all_pages(lambda cursor: filters.page(site, principal, cursor, AT_ONCE))
    return csv_of("feedback", list(Feedback.model_fields), rows)


def _list_feedback(
    site: Site,
    principal: Principal,
    *,
    kind: str | None = None,
    session_id: str | None = None,
    created_by: str | None = None,
    cursor: str | None,
    limit: int,
) -> Page[Feedback]:
    """Feedback, newest first."""
    place = parse_cursor(cursor, int)
    found = site.store.feedback.page(
        before_id=place[0] if place else None,
        kind=kind,
        session_id=session_id,
        created_by=created_by,
        limit=limit,
    )
    return Page(
        items=found, next=make_cursor(found[-1].feedback_id) if len(found) == limit else None
    )


def _read_entry(site: Site, principal: Principal, feedback_id: int) -> Feedback:
    """Raises Problem 404."""
    found = site.store.feedback.page(before_id=feedback_id + 1, limit=1)
    if not found or found[0].feedback_id != feedback_id:
        raise Problem(404, f"There is no feedback {feedback_id} here.", kind="not_found")
    return found[0]

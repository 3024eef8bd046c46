"""Routes of feedback: send it, list it, download it."""

from datetime import UTC, datetime, time
from typing import Annotated, get_args

from fastapi import APIRouter, Depends, Query, Request, Response

from rlhf_pipeline.core.api_types.base import Page
from rlhf_pipeline.core.api_types.filters import FeedbackFilter, FeedbackKind
from rlhf_pipeline.core.records import AnnotatorKind, Feedback, NewFeedback
from rlhf_pipeline.feedback.datasets.pseudonyms import Pseudonyms
from rlhf_pipeline.web.lists import (
    FilterField,
    RowList,
    as_choices,
    make_cursor,
    page_filter,
    parse_cursor,
    show_list,
)
from rlhf_pipeline.web.permissions import Permission, Principal
from rlhf_pipeline.web.problems import Problem
from rlhf_pipeline.web.rendering import names_for
from rlhf_pipeline.web.routing import AnySite, OptionalKey, api_router, needs
from rlhf_pipeline.web.site import Site

api = api_router("feedback")
pages = APIRouter()
Sender = Annotated[Principal, Depends(needs(Permission.FEEDBACK_SEND))]
Reader = Annotated[Principal, Depends(needs(Permission.FEEDBACK_READ))]
Asked = Annotated[FeedbackFilter, Query()]
Shown = Annotated[FeedbackFilter, page_filter(FeedbackFilter)]


def _list_feedback(site: Site, _: Principal, filters: FeedbackFilter) -> Page[Feedback]:
    """Feedback, newest first."""
    place = parse_cursor(filters.cursor, int)
    items = site.store.feedback.page(filters, before_id=place[0] if place else None)
    is_full = len(items) == filters.limit
    return Page(items=items, next=make_cursor(items[-1].feedback_id) if is_full else None)


FEEDBACK = RowList(
    "Feedback",
    "/feedback",
    "feedback/page.html",
    Feedback,
    key="feedback_id",
    read=_list_feedback,
    fields=lambda *_: [
        FilterField("kind", "Kind", choices=as_choices(get_args(FeedbackKind))),
        FilterField("session_id", "session", "given"),
        FilterField("created_by", "from", "given"),
    ],
    describe=lambda site, principal, _: {"names": names_for(site, principal)},
)


@api.post("/feedback", status_code=201)
def send(site: AnySite, principal: Sender, body: NewFeedback, key: OptionalKey = None) -> Feedback:
    """Record feedback. A correction becomes a comparison with its author's vote for the corrected
    text, which training uses. A service account names the author in `author`; without it the vote
    counts as a machine's, which training does not use."""
    _check_time(site, body)
    is_person = principal.user.kind == "person"
    if body.author is not None:
        if is_person:
            fault = (
                "is for service accounts that send feedback of others; leave it out, your feedback "
                "is your own"
            )
            raise Problem(422, f"author {fault}.", kind="invalid", errors=[("body.author", fault)])
        body = body.model_copy(update={"author": Pseudonyms.load(site.settings.home)(body.author)})
    kind = AnnotatorKind.HUMAN if is_person or body.author is not None else AnnotatorKind.MACHINE
    return site.store.feedback.add(
        body,
        created_by=principal.user_id,
        annotator_kind=kind,
        is_blind=principal.is_blind if body.author is None else None,
        idempotency_key=key,
    )


@api.get("/feedback")
def read_all(site: AnySite, principal: Reader, filters: Asked) -> Page[Feedback]:
    """Feedback, newest first."""
    return _list_feedback(site, principal, filters)


def _check_time(site: Site, feedback: NewFeedback) -> None:
    """A correction's vote is filed under its day, which must be one of the project's."""
    if feedback.given_at is None:
        return
    # Compared as timestamps: near either end of the calendar a UTC date may not exist.
    if (
        not datetime.combine(site.settings.start_day, time(), UTC)
        <= feedback.given_at
        <= site.store.database.clock.now()
    ):
        fault = (
            f"is {feedback.given_at}: it must lie between the project's first day, "
            f"{site.settings.start_day}, and now"
        )
        raise Problem(422, f"given_at {fault}.", kind="invalid", errors=[("body.given_at", fault)])


@pages.get("/feedback")
def show_page(site: AnySite, request: Request, principal: Reader, filters: Shown) -> Response:
    return show_list(FEEDBACK, request, site, principal, filters)

"""Thumbs, ratings, corrections and words from where a model is used. Knows sessions; knows no card."""

from datetime import UTC
from typing import Annotated, Literal

from fastapi import Depends, Path, Query

from rlhf_pipeline.records import AnnotatorKind, Feedback, NewFeedback
from rlhf_pipeline.web.api.routing import api_router
from rlhf_pipeline.web.auth import Principal
from rlhf_pipeline.web.dependencies import AnySite, needs
from rlhf_pipeline.web.idempotency import done_once
from rlhf_pipeline.web.paging import Cursor, Limit, cursor_of, place_of
from rlhf_pipeline.web.permissions import Permission
from rlhf_pipeline.web.problems import Problem
from rlhf_pipeline.web.schemas import LARGEST, Page
from rlhf_pipeline.web.site import Site

router = api_router("feedback")
Sender = Annotated[Principal, Depends(needs(Permission.FEEDBACK_SEND))]
READER = [Depends(needs(Permission.FEEDBACK_READ))]


@router.post("/feedback", status_code=201)
@done_once()
def send(site: AnySite, principal: Sender, body: NewFeedback) -> Feedback:
    """Record one. A correction becomes a comparison with its author's vote for the corrected text, which training takes as chosen."""
    _check_time(site, body)
    kind = AnnotatorKind.HUMAN if principal.user.kind == "person" else AnnotatorKind.MACHINE
    return site.store.feedback.add(body, created_by=principal.user_id, annotator_kind=kind)


@router.get("/feedback", dependencies=READER)
def read_all(
    site: AnySite,
    kind: Literal["thumbs", "rating", "correction", "detailed"] | None = None,
    session_id: Annotated[str | None, Query(max_length=200)] = None,
    created_by: Annotated[str | None, Query(max_length=200)] = None,
    cursor: Cursor = None,
    limit: Limit = 50,
) -> Page[Feedback]:
    """Newest first."""
    place = place_of(cursor, int)
    found = site.store.feedback.page(
        before_id=place[0] if place else None, kind=kind, session_id=session_id, created_by=created_by, limit=limit
    )
    return Page(items=found, next=cursor_of(found[-1].feedback_id) if len(found) == limit else None)


@router.get("/feedback/{feedback_id}", dependencies=READER)
def read(site: AnySite, feedback_id: Annotated[int, Path(ge=1, le=LARGEST)]) -> Feedback:
    """One entry."""
    found = site.store.feedback.page(before_id=feedback_id + 1, limit=1)
    if not found or found[0].feedback_id != feedback_id:
        raise Problem(404, f"There is no feedback {feedback_id} here.", kind="not_found")
    return found[0]


def _check_time(site: Site, sent: NewFeedback) -> None:
    """A correction's vote is filed under its day, which must be one of the project's."""
    if sent.given_at is None:
        return
    if not site.settings.start_day <= sent.given_at.astimezone(UTC).date() or sent.given_at > site.store.database.clock.now():
        said = f"is {sent.given_at}: it must lie between the project's first day, {site.settings.start_day}, and now"
        raise Problem(422, f"given_at {said}.", kind="invalid", errors=[("body.given_at", said)])

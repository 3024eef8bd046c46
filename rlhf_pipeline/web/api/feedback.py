"""Thumbs, ratings, corrections and words from where a model is used. Knows sessions; knows no
card.
"""

from datetime import UTC, datetime, time
from typing import Annotated, Literal

from fastapi import Depends, Path, Query

from rlhf_pipeline.api_types.base import LARGEST, Page
from rlhf_pipeline.datasets.pseudonyms import Pseudonyms
from rlhf_pipeline.permissions import Permission
from rlhf_pipeline.records import AnnotatorKind, Feedback, NewFeedback
from rlhf_pipeline.web import lists
from rlhf_pipeline.web.api.routing import api_router
from rlhf_pipeline.web.auth import Principal
from rlhf_pipeline.web.dependencies import AnySite, needs
from rlhf_pipeline.web.idempotency import runs_once
from rlhf_pipeline.web.pagination import Cursor, Limit
from rlhf_pipeline.web.problems import Problem
from rlhf_pipeline.web.site import Site

router = api_router("feedback")
Sender = Annotated[Principal, Depends(needs(Permission.FEEDBACK_SEND))]
Reader = Annotated[Principal, Depends(needs(Permission.FEEDBACK_READ))]


@router.post("/feedback", status_code=201)
@runs_once()
def send(site: AnySite, principal: Sender, body: NewFeedback) -> Feedback:
    """Record one. A correction becomes a comparison with its author's vote for the corrected text,
    which training takes as chosen: of a service account only where `author` says whose words it
    passes on. Without, they are a machine's."""
    _check_time(site, body)
    is_person = principal.user.kind == "person"
    if body.author is not None:
        if is_person:
            said = (
                "is for service accounts, which pass on what others said: leave it out, what "
                "you send is your own"
            )
            raise Problem(422, f"author {said}.", kind="invalid", errors=[("body.author", said)])
        body = body.model_copy(update={"author": Pseudonyms.load(site.settings.home)(body.author)})
    kind = AnnotatorKind.HUMAN if is_person or body.author is not None else AnnotatorKind.MACHINE
    return site.store.feedback.add(body, created_by=principal.user_id, annotator_kind=kind)


@router.get("/feedback")
def read_all(
    site: AnySite,
    principal: Reader,
    kind: Literal["thumbs", "rating", "correction", "detailed"] | None = None,
    session_id: Annotated[str | None, Query(max_length=200)] = None,
    created_by: Annotated[str | None, Query(max_length=200)] = None,
    cursor: Cursor = None,
    limit: Limit = 50,
) -> Page[Feedback]:
    """Newest first. Who may vote is not shown others' corrections of what they have not judged; an
    admin is.
    """
    return lists.feedback(
        site,
        principal,
        kind=kind,
        session_id=session_id,
        created_by=created_by,
        cursor=cursor,
        limit=limit,
    )


@router.get("/feedback/{feedback_id}")
def read(
    site: AnySite, principal: Reader, feedback_id: Annotated[int, Path(ge=1, le=LARGEST)]
) -> Feedback:
    """One entry."""
    return lists.feedback_entry(site, principal, feedback_id)


def _check_time(site: Site, sent: NewFeedback) -> None:
    """A correction's vote is filed under its day, which must be one of the project's."""
    if sent.given_at is None:
        return
    # Compared as moments: one at either end of the calendar may have no date in UTC.
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

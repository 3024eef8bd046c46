"""Lists feedback as its readers may see it."""

from rlhf_pipeline.api_types.base import Page
from rlhf_pipeline.records import Feedback
from rlhf_pipeline.web.auth import Principal
from rlhf_pipeline.web.blindness import blind_reader_id
from rlhf_pipeline.web.pagination import make_cursor, parse_cursor
from rlhf_pipeline.web.problems import Problem
from rlhf_pipeline.web.site import Site


def feedback(
    site: Site,
    principal: Principal,
    *,
    kind: str | None = None,
    session_id: str | None = None,
    created_by: str | None = None,
    cursor: str | None,
    limit: int,
) -> Page[Feedback]:
    """Feedback, newest first, without corrections that are hidden from the reader; `next` does not
    reveal them either.
    """
    place = parse_cursor(cursor, int)
    found = site.store.feedback.page(
        before_id=place[0] if place else None,
        kind=kind,
        session_id=session_id,
        created_by=created_by,
        seen_by=blind_reader_id(principal),
        limit=limit,
    )
    return Page(
        items=found, next=make_cursor(found[-1].feedback_id) if len(found) == limit else None
    )


def feedback_entry(site: Site, principal: Principal, feedback_id: int) -> Feedback:
    """Raises Problem 404, and in the same words for a correction of a comparison that the reader
    has not judged yet.
    """
    found = site.store.feedback.page(
        before_id=feedback_id + 1, seen_by=blind_reader_id(principal), limit=1
    )
    if not found or found[0].feedback_id != feedback_id:
        raise Problem(404, f"There is no feedback {feedback_id} here.", kind="not_found")
    return found[0]

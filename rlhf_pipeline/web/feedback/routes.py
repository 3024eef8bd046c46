"""Routes of feedback: send it, list it, review it, undo a review."""

from collections.abc import Mapping
from dataclasses import replace
from datetime import UTC, datetime, time
from typing import Annotated, Literal, get_args

from fastapi import APIRouter, Depends, Query, Request, Response

from rlhf_pipeline.core.api_types.base import Page
from rlhf_pipeline.core.api_types.feedback_reviews import (
    MOST_REVIEWED,
    FeedbackReview,
    ReviewedFeedback,
    ReviewUndo,
)
from rlhf_pipeline.core.api_types.filters import OTHER_PLACE, FeedbackFilter, FeedbackKind
from rlhf_pipeline.core.curation import NamedVersion
from rlhf_pipeline.core.errors import StoreError
from rlhf_pipeline.core.records import (
    AnnotatorKind,
    Feedback,
    FeedbackStatus,
    NewFeedback,
    Number,
)
from rlhf_pipeline.feedback.datasets.pseudonyms import Pseudonyms
from rlhf_pipeline.reports.words import format_count
from rlhf_pipeline.web.forms import EMPTY_FORM, Fields, Form, attempt, validate
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
from rlhf_pipeline.web.rendering import names_for, query_of, see_other
from rlhf_pipeline.web.routing import AnySite, OptionalKey, api_router, needs, problem_responses
from rlhf_pipeline.web.site import Site

api = api_router("feedback")
pages = APIRouter()
Sender = Annotated[Principal, Depends(needs(Permission.FEEDBACK_SEND))]
Reader = Annotated[Principal, Depends(needs(Permission.FEEDBACK_READ))]
Curator = Annotated[Principal, Depends(needs(Permission.DATASETS_WRITE))]
Asked = Annotated[FeedbackFilter, Query()]
STATUSES: tuple[FeedbackStatus, ...] = get_args(FeedbackStatus)
ACTS = {"approved": "Approved", "rejected": "Rejected", "pending": "Made pending", "": "Changed"}


class QueueFilter(FeedbackFilter):
    """Of the page, which is a queue: without a status, what nobody has reviewed."""

    status: FeedbackStatus | Literal["all"] | None = "pending"


Shown = Annotated[QueueFilter, page_filter(QueueFilter)]


def _list_feedback(site: Site, _: Principal, filters: FeedbackFilter) -> Page[Feedback]:
    """Feedback, newest first."""
    place = parse_cursor(filters.cursor, int)
    items = site.store.feedback.page(filters, before_id=place[0] if place else None)
    is_full = len(items) == filters.limit
    return Page(items=items, next=make_cursor(items[-1].feedback_id) if is_full else None)


def _list_versions(site: Site, entry: Feedback) -> list[NamedVersion]:
    """The versions of data sets with a row of an entry, or of the comparison of a correction."""
    sources = [f"feedback:{entry.feedback_id}", f"comparison:{entry.comparison_id}"]
    return site.store.datasets.versions_of(*sources)


def _list_fields(site: Site, counts: Mapping[str, int]) -> list[FilterField]:
    words = {status: f"{status} ({n:,})" for status, n in counts.items()}
    return [
        FilterField("status", "Status", choices=words, default="pending"),
        FilterField("kind", "Kind", choices=as_choices(get_args(FeedbackKind))),
        FilterField("tag", "Tag", choices=as_choices(site.store.feedback_reviews.list_tags())),
        FilterField("feedback_id", "number", "given"),
        FilterField("session_id", "session", "given"),
        FilterField("created_by", "from", "given"),
        FilterField("since", "Days", "days"),
    ]


def _count_by_status(site: Site) -> dict[str, int]:
    """Number of entries by status, and of `all`."""
    counts = site.store.feedback_reviews.count_by_status()
    return {status: counts.get(status, 0) for status in STATUSES} | {"all": sum(counts.values())}


FEEDBACK = RowList(
    "Feedback",
    "/feedback",
    "feedback/page.html",
    Feedback,
    key="feedback_id",
    read=_list_feedback,
    describe=lambda site, principal, page: {
        "names": names_for(site, principal),
        "versions": {entry.feedback_id: _list_versions(site, entry) for entry in page.items},
        "most": MOST_REVIEWED,
    },
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


@api.post("/feedback:review", responses=problem_responses(409))
def review(site: AnySite, principal: Curator, body: FeedbackReview) -> ReviewedFeedback:
    """Approve, reject, tag or annotate feedback, or make it pending again: all entries or none.
    Approved feedback alone enters data sets. While a correction is rejected, no fit learns from
    the votes on it. With `filter` the call is refused (409) unless it matches `n_expected` entries.
    """
    unknown = site.store.feedback_reviews.find_unknown(body.feedback_ids)
    if unknown:
        errors = [
            (f"body.feedback_ids.{i}", f"feedback {n}: does not exist")
            for i, n in enumerate(body.feedback_ids)
            if n in unknown
        ]
        detail = f"There is no feedback {min(unknown)}. Nothing was changed. Leave it out."
        raise Problem(422, detail, kind="invalid", errors=errors)
    return site.store.feedback_reviews.review(body, actor=principal.user_id)


@api.post("/feedback:undo", responses=problem_responses(404, 409))
def undo(site: AnySite, principal: Curator, body: ReviewUndo) -> ReviewedFeedback:
    """Undo a review: its entries get their former status, tags and notes. Entries that were
    reviewed again since are left and named.
    """
    return site.store.feedback_reviews.undo(body.review_id, actor=principal.user_id)


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
    return _show(site, request, principal, filters)


@pages.post("/feedback/review")
def submit(
    site: AnySite, request: Request, principal: Curator, query: Asked, form: Form
) -> Response:
    """Review the ticked entries, or all of the filter, or the one of an open panel."""
    if not form.has("all") and not form.has("id"):
        return _show_again(query, "Tick at least one entry.")
    done, problem = attempt(lambda: review(site, principal, _parse_review(query, form)), StoreError)
    if done is None:
        return _show(site, request, principal, query, problem=problem, draft=form)
    notice = f"{ACTS[form.text('status')]} {format_count(done.n_changed, 'item')}."
    if done.review_id is None:
        return _show_again(query, "Nothing changed: it was so before.", form.text("next"))
    back = f"/feedback/undo/{done.review_id}?{query_of(query.here)}"
    return _show_again(query, notice, form.text("next"), undo=back)


@pages.post("/feedback/undo/{review_id}")
def submit_undo(site: AnySite, principal: Curator, review_id: Number, query: Asked) -> Response:
    done, problem = attempt(
        lambda: undo(site, principal, ReviewUndo(review_id=review_id)), StoreError
    )
    if done is None:
        return _show_again(query, problem.detail if problem else "")
    notice = f"Restored {format_count(done.n_changed, 'item')}."
    if done.left:
        notice += f" Reviewed again since and left: {', '.join(map(str, done.left))}."
    return _show_again(query, notice)


def _show(
    site: Site,
    request: Request,
    principal: Principal,
    filters: FeedbackFilter,
    *,
    problem: Problem | None = None,
    draft: Fields = EMPTY_FORM,
) -> Response:
    counts = _count_by_status(site)
    has_others = any(value for name, value in filters.chosen.items() if name != "status")
    reviews = site.store.feedback_reviews
    values = {
        "draft": draft,
        "counts": counts,
        "n_matching": reviews.count(filters) if has_others else counts[filters.status or "all"],
    }
    rows = replace(FEEDBACK, fields=lambda *_: _list_fields(site, counts))
    return show_list(rows, request, site, principal, filters, problem=problem, **values)


def _show_again(filters: FeedbackFilter, notice: str, row: str = "", *, undo: str = "") -> Response:
    """The list with its filters and page, after a form, with a row open."""
    anchor = f"#feedback-{row}" if row.isdecimal() else ""
    here = {name: value for name, value in filters.here.items() if value != "pending"}
    return see_other(f"/feedback?{query_of(here)}{anchor}", notice=notice, undo=undo)


def _parse_review(query: FeedbackFilter, form: Fields) -> FeedbackReview:
    """The form of a panel has all tags and notes, that of many entries has further ones."""
    values: dict[str, object] = {"status": form.text("status") or None}
    tags = [tag for part in form.text("tags").split(",") if (tag := part.strip())]
    notes = form.text("notes")
    if form.has("is_whole"):
        values |= {"tags": tags, "notes": notes}
    else:
        values |= {"add_tags": tags, "notes": notes.strip() or None}
    if form.has("all"):
        chosen = query.model_dump(exclude=OTHER_PLACE)
        values |= {"filter": chosen, "n_expected": form.number("all")}
    else:
        values["feedback_ids"] = form.all("id")
    return validate(FeedbackReview, values)

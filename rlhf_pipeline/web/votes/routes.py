"""Routes of votes: cast one or many, list them, download them."""

from typing import Annotated

from fastapi import APIRouter, Depends, Request, Response

from rlhf_pipeline.api_types.base import Page
from rlhf_pipeline.api_types.votes import (
    Batch,
    BatchResults,
    VoteFields,
    VoteOut,
    VoteReceipt,
)
from rlhf_pipeline.permissions import Permission
from rlhf_pipeline.store.vote_lists import VoteStatus
from rlhf_pipeline.web.auth import Principal
from rlhf_pipeline.web.dependencies import AnySite, needs
from rlhf_pipeline.web.downloads import AT_ONCE, csv_of, read_all_pages
from rlhf_pipeline.web.forms import attempt
from rlhf_pipeline.web.idempotency import RequiredKey
from rlhf_pipeline.web.pagination import Cursor, Limit
from rlhf_pipeline.web.pick_lists import (
    VOTE_FLAG_WORDS,
    list_annotators,
    list_categories,
    list_sources,
)
from rlhf_pipeline.web.quality.routes import WORDS
from rlhf_pipeline.web.rendering import names_for, query_of, render
from rlhf_pipeline.web.routing import api_router, problem_responses
from rlhf_pipeline.web.site import Site
from rlhf_pipeline.web.votes import casting, queries
from rlhf_pipeline.web.votes.filters import VoteFilters

api = api_router("votes")
pages = APIRouter()
Annotator = Annotated[Principal, Depends(needs(Permission.VOTES_CAST))]
Reader = Annotated[Principal, Depends(needs(Permission.VOTES_READ))]
Filters = Annotated[VoteFilters, Depends()]
SHOWN = 50
STATUSES: dict[VoteStatus, str] = {
    "counting": "counts",
    "replaced": "replaced by a later vote",
    "not_counting": "followed by a later judgement",
}


@api.post("/votes", status_code=201, response_model=VoteReceipt, responses=problem_responses(404))
def cast(site: AnySite, principal: Annotator, body: VoteFields, key: RequiredKey) -> Response:
    """Cast one vote. A vote answered with 201 is stored durably, with its audit link."""
    receipt = casting.cast(site, principal, body, key)
    return Response(receipt.model_dump_json(), 201, media_type="application/json")


@api.post("/votes:batch")
def cast_batch(site: AnySite, principal: Annotator, body: Batch) -> BatchResults:
    """Cast up to 50 votes. Each gets its own result."""
    return BatchResults(results=casting.cast_batch(site, principal, body.votes))


@api.get("/votes")
def read(
    site: AnySite,
    _: Reader,
    filters: Filters,
    cursor: Cursor = None,
    limit: Limit = 50,
) -> Page[VoteOut]:
    """Recorded votes, newest first. A page that searches is short where few votes match, and may
    still have a `next`.
    """
    return _read_page(site, filters, cursor, limit)


@pages.get("/votes")
def show_page(
    site: AnySite, request: Request, principal: Reader, filters: Filters, cursor: Cursor = None
) -> Response:
    page, problem = attempt(lambda: _read_page(site, filters, cursor, SHOWN))
    page = page or Page[VoteOut](items=[], next=None)
    names = names_for(site, principal)
    texts = (
        site.store.comparisons.texts([vote.comparison_id for vote in page.items])
        if principal.may(Permission.COMPARISONS_READ)
        else {}
    )
    return render(
        "votes/page.html",
        request,
        site,
        principal,
        status=problem.status if problem else 200,
        page=page,
        prompts={one: known.prompt for one, known in texts.items()},
        filters=filters.values,
        query=query_of(filters.values),
        problem=problem.detail if problem else None,
        is_later=cursor is not None,
        names=names,
        annotators=list_annotators(site, names),
        picks={
            "status": STATUSES,
            "flag": VOTE_FLAG_WORDS,
            "category": {one: one for one in list_categories(site)},
            "source": {one: one for one in list_sources(site)},
            "mark": WORDS,
        },
    )


@pages.get("/votes.csv")
def download(site: AnySite, _: Reader, filters: Filters) -> Response:
    _read_page(site, filters, None, 1)  # validated before the file begins
    rows = read_all_pages(lambda cursor: _read_page(site, filters, cursor, AT_ONCE))
    return csv_of("votes", list(VoteOut.model_fields), rows)


def _read_page(site: Site, filters: VoteFilters, cursor: str | None, limit: int) -> Page[VoteOut]:
    return queries.votes(site, filters.only, mark=filters.mark, cursor=cursor, limit=limit)

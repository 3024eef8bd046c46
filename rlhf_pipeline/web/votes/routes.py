"""Routes of votes: cast one or many, list them, download them."""

from typing import Annotated

from fastapi import APIRouter, Depends, Query, Request, Response

from rlhf_pipeline.api_types.base import Page
from rlhf_pipeline.api_types.filters import VoteFilter, VoteStatus
from rlhf_pipeline.api_types.votes import (
    Batch,
    BatchResults,
    VoteFields,
    VoteReceipt,
)
from rlhf_pipeline.permissions import Permission
from rlhf_pipeline.records import ListedVote
from rlhf_pipeline.web.auth import Principal
from rlhf_pipeline.web.dependencies import AnySite, needs
from rlhf_pipeline.web.downloads import AT_ONCE, csv_of, read_all_pages
from rlhf_pipeline.web.forms import attempt
from rlhf_pipeline.web.idempotency import RequiredKey
from rlhf_pipeline.web.pick_lists import (
    VOTE_FLAG_WORDS,
    list_annotators,
    list_categories,
    list_sources,
)
from rlhf_pipeline.web.quality.routes import WORDS
from rlhf_pipeline.web.rendering import names_for, query_of, render
from rlhf_pipeline.web.routing import api_router, problem_responses
from rlhf_pipeline.web.votes import casting, queries

api = api_router("votes")
pages = APIRouter()
Annotator = Annotated[Principal, Depends(needs(Permission.VOTES_CAST))]
Reader = Annotated[Principal, Depends(needs(Permission.VOTES_READ))]
Asked = Annotated[VoteFilter, Query()]
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
def read(site: AnySite, _: Reader, asked: Asked) -> Page[ListedVote]:
    """Recorded votes, newest first. A page that searches is short where few votes match, and may
    still have a `next`.
    """
    return queries.votes(site, asked)


@pages.get("/votes")
def show_page(site: AnySite, request: Request, principal: Reader, asked: Asked) -> Response:
    page, problem = attempt(lambda: queries.votes(site, asked))
    page = page or Page[ListedVote](items=[], next=None)
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
        filters=asked.chosen,
        query=query_of(asked.chosen),
        problem=problem.detail if problem else None,
        is_later=asked.cursor is not None,
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
def download(site: AnySite, _: Reader, asked: Asked) -> Response:
    queries.votes(site, asked)  # validated before the file begins
    rows = read_all_pages(lambda cursor: queries.votes(site, asked.at(cursor, AT_ONCE)))
    return csv_of("votes", list(ListedVote.model_fields), rows)

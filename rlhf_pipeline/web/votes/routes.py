"""Routes of votes: cast one or many, list them."""

from typing import Annotated, Any

from fastapi import APIRouter, Depends, Query, Request, Response

from rlhf_pipeline.core.api_types.base import Page
from rlhf_pipeline.core.api_types.filters import VoteFilter
from rlhf_pipeline.core.api_types.votes import Batch, BatchResults, VoteFields, VoteReceipt
from rlhf_pipeline.core.records import ListedVote
from rlhf_pipeline.web.lists import (
    VOTE_FLAG_WORDS,
    FilterField,
    RowList,
    as_choices,
    list_annotators,
    list_categories,
    list_sources,
    page_filter,
    show_list,
)
from rlhf_pipeline.web.permissions import Permission, Principal
from rlhf_pipeline.web.quality.routes import WORDS
from rlhf_pipeline.web.rendering import names_for
from rlhf_pipeline.web.routing import AnySite, RequiredKey, api_router, needs, problem_responses
from rlhf_pipeline.web.site import Site
from rlhf_pipeline.web.votes import casting, queries

api = api_router("votes")
pages = APIRouter()
Annotator = Annotated[Principal, Depends(needs(Permission.VOTES_CAST))]
Reader = Annotated[Principal, Depends(needs(Permission.VOTES_READ))]
Asked = Annotated[VoteFilter, Query()]
Shown = Annotated[VoteFilter, page_filter(VoteFilter)]
STATUSES: dict[str, str] = {
    "counting": "counts",
    "replaced": "replaced by a later vote",
    "not_counting": "followed by a later judgement",
}
BLINDNESS = {"true": "could not read others' votes", "false": "could read others' votes"}


def _list_fields(site: Site, principal: Principal) -> list[FilterField]:
    annotators = list_annotators(site, names_for(site, principal))
    return [
        FilterField("q", "Words in reason or prompt", "search"),
        FilterField("annotator_id", "Annotator", choices=annotators),
        FilterField("status", "Status", choices=STATUSES),
        FilterField("flag", "Flag", choices=VOTE_FLAG_WORDS),
        FilterField("is_blind", "Blind", choices=BLINDNESS),
        FilterField("category", "Category", choices=as_choices(list_categories(site))),
        FilterField("source", "Source", choices=as_choices(list_sources(site))),
        FilterField("mark", "Mark", choices=WORDS),
        FilterField("since", "Days", "days"),
        FilterField("up_to", "up to vote", "given"),
        FilterField("comparison_id", "comparison", "given"),
    ]


def _describe(site: Site, principal: Principal, page: Page[ListedVote]) -> dict[str, Any]:
    ids = [vote.comparison_id for vote in page.items]
    may_read = principal.may(Permission.COMPARISONS_READ)
    texts = site.store.comparisons.texts(ids) if may_read else {}
    return {
        "prompts": {comparison_id: text.prompt for comparison_id, text in texts.items()},
        "names": names_for(site, principal),
        "flags": VOTE_FLAG_WORDS,
    }


VOTES = RowList(
    "Votes",
    "/votes",
    "votes/page.html",
    ListedVote,
    key="vote_id",
    read=queries.votes,
    fields=_list_fields,
    describe=_describe,
    count=lambda site: site.store.votes.max_seq(),
)


@api.post("/votes", status_code=201, response_model=VoteReceipt, responses=problem_responses(404))
def submit(site: AnySite, principal: Annotator, body: VoteFields, key: RequiredKey) -> Response:
    """Cast one vote. A vote answered with 201 is stored durably, with its audit link."""
    receipt = casting.record_vote(site, principal, body, key)
    return Response(receipt.model_dump_json(), 201, media_type="application/json")


@api.post("/votes:batch")
def submit_batch(site: AnySite, principal: Annotator, body: Batch) -> BatchResults:
    """Cast up to 50 votes. Each gets its own result."""
    return BatchResults(results=casting.record_batch(site, principal, body.votes))


@api.get("/votes")
def read(site: AnySite, principal: Reader, filters: Asked) -> Page[ListedVote]:
    """Recorded votes, newest first. A page that searches is short where few votes match, and may
    still have a `next`.
    """
    return queries.votes(site, principal, filters)


@pages.get("/votes")
def show_page(site: AnySite, request: Request, principal: Reader, filters: Shown) -> Response:
    return show_list(VOTES, request, site, principal, filters)

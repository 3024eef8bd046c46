"""Routes of votes: cast one or many, list them."""

from collections.abc import Mapping
from typing import Annotated

from fastapi import APIRouter, Depends, Query, Request, Response

from rlhf_pipeline.api_types.base import Page
from rlhf_pipeline.api_types.filters import VoteFilter
from rlhf_pipeline.api_types.votes import Batch, BatchResults, VoteFields, VoteReceipt
from rlhf_pipeline.permissions import Permission, Principal
from rlhf_pipeline.records import ListedVote
from rlhf_pipeline.web.forms import attempt
from rlhf_pipeline.web.lists import (
    VOTE_FLAG_WORDS,
    FilterField,
    ListPage,
    RowList,
    as_choices,
    list_annotators,
    list_categories,
    list_sources,
    page_filter,
    render_list,
    send_csv,
    wants_csv,
)
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
VOTES = RowList("Votes", "/votes", "votes/page.html", ListedVote, key="vote_id")
STATUSES: dict[str, str] = {
    "counting": "counts",
    "replaced": "replaced by a later vote",
    "not_counting": "followed by a later judgement",
}
BLINDNESS = {"true": "could not read others' votes", "false": "could read others' votes"}


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
def show_page(site: AnySite, request: Request, principal: Reader, asked: Shown) -> Response:
    if wants_csv(request):
        return send_csv(VOTES, asked, lambda part: queries.votes(site, part))
    page, problem = attempt(lambda: queries.votes(site, asked))
    page = page or Page[ListedVote](items=[], next=None)
    names = names_for(site, principal)
    texts = (
        site.store.comparisons.texts([vote.comparison_id for vote in page.items])
        if principal.may(Permission.COMPARISONS_READ)
        else {}
    )
    return render_list(
        VOTES,
        request,
        site,
        principal,
        ListPage(
            asked,
            page,
            fields=_list_fields(site, names),
            n_rows=site.store.votes.max_seq(),
            problem=problem,
        ),
        prompts={one: known.prompt for one, known in texts.items()},
        names=names,
        flags=VOTE_FLAG_WORDS,
    )


def _list_fields(site: Site, names: Mapping[str, str]) -> list[FilterField]:
    return [
        FilterField("q", "Words in reason or prompt", "search"),
        FilterField("annotator_id", "Annotator", choices=list_annotators(site, names)),
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

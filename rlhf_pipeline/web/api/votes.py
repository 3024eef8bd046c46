"""Votes: cast one, cast many, read them. Knows requests and answers; how a vote is made stands in
`web.votes`.
"""

from datetime import date
from typing import Annotated

from fastapi import Depends, Header, Query, Response

from rlhf_pipeline.api_types.base import Page
from rlhf_pipeline.api_types.votes import Batch, BatchResults, VoteFields, VoteOut, VoteReceipt
from rlhf_pipeline.permissions import Permission
from rlhf_pipeline.votes.quality import Mark
from rlhf_pipeline.web import lists, votes
from rlhf_pipeline.web.api.routing import api_router, problem_responses
from rlhf_pipeline.web.auth import Principal
from rlhf_pipeline.web.dependencies import AnySite, needs
from rlhf_pipeline.web.fast_path import FastPathRoute, fast_path
from rlhf_pipeline.web.idempotency import MOST, check_key, keeps_own_key
from rlhf_pipeline.web.pagination import Cursor, Limit

router = api_router("votes", FastPathRoute)
Annotator = Annotated[Principal, Depends(needs(Permission.VOTES_CAST))]
Reader = Annotated[Principal, Depends(needs(Permission.VOTES_READ))]
Key = Annotated[
    str,
    Header(
        alias="Idempotency-Key",
        min_length=1,
        max_length=MOST,
        description="The same vote sent again under it is one vote",
    ),
]


@router.post(
    "/votes", status_code=201, response_model=VoteReceipt, responses=problem_responses(404)
)
@keeps_own_key
@fast_path(VoteFields)
def cast(site: AnySite, principal: Annotator, body: VoteFields, key: Key) -> Response:
    """Cast one vote. What is answered with 201 is on disk, with its link in the audit chain."""
    receipt = votes.cast(site, principal, body, check_key(key))
    return Response(receipt.model_dump_json(), 201, media_type="application/json")


@router.post("/votes:batch")
def cast_batch(site: AnySite, principal: Annotator, body: Batch) -> BatchResults:
    """Cast up to 50, each answered for by itself."""
    return BatchResults(results=votes.cast_batch(site, principal, body.votes))


@router.get("/votes")
def read(
    site: AnySite,
    principal: Reader,
    annotator_id: Annotated[str | None, Query(max_length=200)] = None,
    day: date | None = None,
    comparison_id: Annotated[str | None, Query(max_length=200)] = None,
    q: Annotated[
        str | None,
        Query(max_length=200, description="words in the reason; alone, without the other filters"),
    ] = None,
    mark: Annotated[
        Mark | None,
        Query(description="votes that `GET quality` counts; with annotator_id or alone"),
    ] = None,
    cursor: Cursor = None,
    limit: Limit = 50,
) -> Page[VoteOut]:
    """Votes as recorded, newest first. Who may vote is not shown others' votes on what they have
    not judged; an admin is.
    """
    only = {
        "annotator_id": annotator_id,
        "day": str(day) if day else None,
        "comparison_id": comparison_id,
    }
    return lists.votes(site, principal, only, q, mark=mark, cursor=cursor, limit=limit)

"""Routes of votes: cast one or many, list them, download them."""

from datetime import date
from typing import Annotated

from fastapi import APIRouter, Depends, Header, Query, Request, Response

from rlhf_pipeline.api_types.base import Page
from rlhf_pipeline.api_types.votes import Batch, BatchResults, VoteFields, VoteOut, VoteReceipt
from rlhf_pipeline.permissions import Permission
from rlhf_pipeline.votes.quality import MARKS, Mark
from rlhf_pipeline.web.auth import Principal
from rlhf_pipeline.web.blindness import blind_reader_id
from rlhf_pipeline.web.dependencies import AnySite, needs
from rlhf_pipeline.web.downloads import AT_ONCE, csv_of, read_all_pages
from rlhf_pipeline.web.forms import attempt
from rlhf_pipeline.web.idempotency import MOST, check_key, keeps_own_key
from rlhf_pipeline.web.pagination import Cursor, Limit
from rlhf_pipeline.web.problems import Problem
from rlhf_pipeline.web.quality.routes import WORDS
from rlhf_pipeline.web.rendering import names_for, query_of, render
from rlhf_pipeline.web.routing import api_router, problem_responses
from rlhf_pipeline.web.site import Site
from rlhf_pipeline.web.votes import casting, queries
from rlhf_pipeline.web.votes.fast_path import FastPathRoute, fast_path

api = api_router("votes", route=FastPathRoute)
pages = APIRouter()
Annotator = Annotated[Principal, Depends(needs(Permission.VOTES_CAST))]
Reader = Annotated[Principal, Depends(needs(Permission.VOTES_READ))]
Key = Annotated[
    str,
    Header(
        alias="Idempotency-Key",
        min_length=1,
        max_length=MOST,
        description="Repeating a vote with the same key casts it once.",
    ),
]
SHOWN = 50


@api.post("/votes", status_code=201, response_model=VoteReceipt, responses=problem_responses(404))
@keeps_own_key
@fast_path(VoteFields)
def cast(site: AnySite, principal: Annotator, body: VoteFields, key: Key) -> Response:
    """Cast one vote. A vote answered with 201 is stored durably, with its audit link."""
    receipt = casting.cast(site, principal, body, check_key(key))
    return Response(receipt.model_dump_json(), 201, media_type="application/json")


@api.post("/votes:batch")
def cast_batch(site: AnySite, principal: Annotator, body: Batch) -> BatchResults:
    """Cast up to 50 votes. Each gets its own result."""
    return BatchResults(results=casting.cast_batch(site, principal, body.votes))


@api.get("/votes")
def read(
    site: AnySite,
    principal: Reader,
    annotator_id: Annotated[str | None, Query(max_length=200)] = None,
    day: date | None = None,
    comparison_id: Annotated[str | None, Query(max_length=200)] = None,
    q: Annotated[
        str | None,
        Query(max_length=200, description="Words in the reason. Not combined with other filters."),
    ] = None,
    mark: Annotated[
        Mark | None,
        Query(
            description="Votes with this mark of `GET quality`. Combined only with annotator_id."
        ),
    ] = None,
    cursor: Cursor = None,
    limit: Limit = 50,
) -> Page[VoteOut]:
    """Recorded votes, newest first. Users who may vote, except admins, see others' votes only on
    comparisons they have judged.
    """
    only = {
        "annotator_id": annotator_id,
        "day": str(day) if day else None,
        "comparison_id": comparison_id,
    }
    return queries.votes(site, principal, only, q, mark=mark, cursor=cursor, limit=limit)


class VoteFilters:
    """Filters from the URL; empty means all."""

    def __init__(
        self,
        q: Annotated[str, Query(max_length=200)] = "",
        day: Annotated[str, Query(max_length=10)] = "",
        annotator_id: Annotated[str, Query(max_length=200)] = "",
        comparison_id: Annotated[str, Query(max_length=200)] = "",
        mark: Annotated[str, Query(max_length=20)] = "",
    ):
        self.q, self.day, self.annotator_id, self.comparison_id, self.mark = (
            word.strip().replace("\x00", "") for word in (q, day, annotator_id, comparison_id, mark)
        )

    @property
    def query(self) -> str:
        return query_of(vars(self))

    def page(
        self, site: Site, principal: Principal, cursor: str | None, limit: int
    ) -> Page[VoteOut]:
        """Raises Problem 422 for filters that cannot be combined and for an invalid day."""
        only = {
            "day": _parse_day(self.day),
            "annotator_id": self.annotator_id or None,
            "comparison_id": self.comparison_id or None,
        }
        return queries.votes(
            site,
            principal,
            only,
            self.q or None,
            mark=_parse_mark(self.mark),
            cursor=cursor,
            limit=limit,
        )


@pages.get("/votes")
def show_page(
    site: AnySite,
    request: Request,
    principal: Reader,
    filters: Annotated[VoteFilters, Depends()],
    cursor: Cursor = None,
) -> Response:
    page, problem = attempt(lambda: filters.page(site, principal, cursor, SHOWN))
    sees_all = blind_reader_id(principal) is None
    return render(
        "votes/page.html",
        request,
        site,
        principal,
        status=problem.status if problem else 200,
        notice=None
        if sees_all
        else "You may vote, so others' votes are listed only for comparisons that you have judged.",
        page=page or Page[VoteOut](items=[], next=None),
        filters=filters,
        query=filters.query,
        problem=problem.detail if problem else None,
        # "No votes yet" is only shown to users who see all votes.
        is_later=cursor is not None or not sees_all,
        names=names_for(site, principal),
        marks=WORDS,
    )


@pages.get("/votes.csv")
def download(
    site: AnySite, principal: Reader, filters: Annotated[VoteFilters, Depends()]
) -> Response:
    filters.page(site, principal, None, 1)  # validated before the file begins
    rows = read_all_pages(lambda cursor: filters.page(site, principal, cursor, AT_ONCE))
    return csv_of("votes", list(VoteOut.model_fields), rows)


def _parse_mark(said: str) -> Mark | None:
    if not said:
        return None
    for mark in MARKS:
        if mark == said:
            return mark
    raise Problem(
        422,
        f"Unknown mark {said!r}; expected one of {', '.join(MARKS)}.",
        kind="invalid",
        errors=[("query.mark", "is not a mark")],
    )


def _parse_day(said: str) -> str | None:
    if not said:
        return None
    try:
        return date.fromisoformat(said).isoformat()
    except ValueError:
        raise Problem(
            422,
            f"Invalid day {said!r}; expected YYYY-MM-DD.",
            kind="invalid",
            errors=[("query.day", "is not a day")],
        ) from None

"""Comparisons: read them, offer them to people, take them back. Knows no vote."""

from typing import Annotated

from fastapi import Depends, Query

from rlhf_pipeline.api_types.base import Page
from rlhf_pipeline.api_types.comparisons import ComparisonOut, Offer, Offered, Withdrawal, Withdrawn
from rlhf_pipeline.permissions import Permission
from rlhf_pipeline.records import Text
from rlhf_pipeline.web import lists, offers
from rlhf_pipeline.web.api.routing import api_router, problem_responses
from rlhf_pipeline.web.auth import Principal
from rlhf_pipeline.web.dependencies import AnySite, needs
from rlhf_pipeline.web.pagination import Cursor, Limit

router = api_router("comparisons")
Reader = Annotated[Principal, Depends(needs(Permission.COMPARISONS_READ))]
Offerer = Annotated[Principal, Depends(needs(Permission.COMPARISONS_OFFER))]


@router.get("/comparisons")
def read_all(
    site: AnySite,
    principal: Reader,
    category: Annotated[
        Text | None, Query(max_length=200, description="only those of this category")
    ] = None,
    cursor: Cursor = None,
    limit: Limit = 50,
) -> Page[ComparisonOut]:
    """Comparisons, the newest day's first. Model names and known answers only for those who may not
    vote, who also find by category only what they have judged: a page may be short and still have a
    next."""
    return lists.comparisons(site, principal, category=category, cursor=cursor, limit=limit)


@router.get("/comparisons/{comparison_id}")
def read(site: AnySite, principal: Reader, comparison_id: str) -> ComparisonOut:
    """One comparison."""
    return lists.comparison(site, principal, comparison_id)


@router.post("/comparisons:offer", responses=problem_responses(404))
def offer(site: AnySite, principal: Offerer, body: Offer) -> Offered:
    """Ask people for judgements of comparisons: of some, of a day's, or of all that nobody voted
    on. With `annotator_id` one person is asked, once for each, beside what anybody is asked for;
    what they skip is left to anybody."""
    return offers.offer(site, principal, body)


@router.post("/comparisons:withdraw")
def withdraw(site: AnySite, principal: Offerer, body: Withdrawal) -> Withdrawn:
    """Ask no more for judgements that are still open."""
    return offers.withdraw(site, principal, body.ids)

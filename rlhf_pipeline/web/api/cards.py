"""Leasing cards, giving them back. Knows what an annotator is shown, and nothing of why a card was
dealt.
"""

from typing import Annotated

from fastapi import Depends, Response
from starlette.concurrency import run_in_threadpool

from rlhf_pipeline.api_types.votes import CardOut, Extended, Lease, LeaseRequest, RulesShown
from rlhf_pipeline.permissions import Permission
from rlhf_pipeline.records import AnnotationRules
from rlhf_pipeline.web.api.routing import api_router
from rlhf_pipeline.web.auth import Principal
from rlhf_pipeline.web.dependencies import AnySite, needs
from rlhf_pipeline.web.site import Site

router = api_router("assignments")
Annotator = Annotated[Principal, Depends(needs(Permission.VOTES_CAST))]
STEP = 10  # about how many: the next moment others took some of them


@router.post("/assignments:lease", response_model=Lease)
async def lease(site: AnySite, principal: Annotator, body: LeaseRequest | None = None) -> Response:
    """Cards to judge, in order: those you still hold first. Yours for `lease_minutes`; a vote that
    comes later is kept all the same.
    """
    async with site.lease_slots:
        return await run_in_threadpool(
            _build_lease_response, site, principal.user_id, (body or LeaseRequest()).n
        )


def _build_lease_response(site: Site, annotator_id: str, n: int) -> Response:
    terms = site.terms()
    cards = site.cards.deal(annotator_id, n, terms.rules)
    left = site.store.assignments.remaining_for(annotator_id, terms.rules)
    answer = Lease(
        cards=[
            CardOut.model_construct(
                assignment_id=card.assignment.assignment_id,
                prompt=card.texts.prompt,
                left=card.left,
                right=card.right,
                leased_until=card.assignment.leased_until,
            )
            for card in cards
        ],
        rules=build_visible_rules(terms.rules),
        guideline_version=terms.guideline_version,
        remaining=-(-left.n // STEP) * STEP,
        reason_empty=None if cards else left.reason_empty,
    )
    return Response(answer.model_dump_json(), media_type="application/json")


@router.post("/assignments/{assignment_id}:release", status_code=204)
def release(site: AnySite, principal: Annotator, assignment_id: str) -> Response:
    """Give a card back before its lease ends."""
    site.cards.release(assignment_id, principal.user_id)
    return Response(status_code=204)


@router.post("/assignments:extend")
def extend(site: AnySite, principal: Annotator) -> Extended:
    """Prolong the leases of all cards you hold by `lease_minutes` from now."""
    return Extended(
        n=site.store.assignments.extend(principal.user_id, site.terms().rules.lease_minutes)
    )


def build_visible_rules(rules: AnnotationRules) -> RulesShown:
    return RulesShown(
        dimensions=list(rules.dimensions),
        **{n: getattr(rules, n) for n in RulesShown.model_fields if n != "dimensions"},
    )

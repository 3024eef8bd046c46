"""Routes of the practice round: its cards, and the known answer of each. No choice is sent."""

from typing import Annotated

from fastapi import Depends

from rlhf_pipeline.api_types.practice import PracticeAnswer, PracticeCardOut, PracticeOut
from rlhf_pipeline.permissions import Permission
from rlhf_pipeline.web.annotate.cards import build_visible_rules, swap_side
from rlhf_pipeline.web.auth import Principal
from rlhf_pipeline.web.dependencies import AnySite, needs
from rlhf_pipeline.web.routing import api_router, problem_responses
from rlhf_pipeline.web.site import Site

api = api_router("practice")
Annotator = Annotated[Principal, Depends(needs(Permission.VOTES_CAST))]


@api.get("/practice")
def read(site: AnySite, principal: Annotator) -> PracticeOut:
    """Your practice round: comparisons with a known answer, before your first vote. Empty where the
    project has fewer than four of them, and once you have voted."""
    terms = site.terms()
    return PracticeOut(
        guideline_version=terms.guideline_version,
        rules=build_visible_rules(terms.rules),
        cards=_find_cards(site, principal),
    )


@api.post("/practice/{comparison_id}:reveal", responses=problem_responses(404))
def reveal(site: AnySite, principal: Annotator, comparison_id: str) -> PracticeAnswer:
    """The known answer of a card of your round. The comparison is not dealt to you later."""
    card, answer = site.store.practice.reveal(principal.user_id, comparison_id, site.terms().rules)
    return PracticeAnswer.model_validate({"choice": swap_side(answer, card.is_swapped)})


def has_welcome(site: Site, principal: Principal) -> bool:
    """Whether the annotate page begins with guidelines or a practice round."""
    terms = site.terms()
    if terms.guideline_version is None:
        return bool(site.store.practice.deal(principal.user_id, terms.rules))
    return not site.store.practice.has_voted(principal.user_id)


def _find_cards(site: Site, principal: Principal) -> tuple[PracticeCardOut, ...]:
    dealt = site.store.practice.deal(principal.user_id, site.terms().rules)
    texts = site.store.comparisons.texts([card.comparison_id for card in dealt])
    found = []
    for card in dealt:
        shown = texts[card.comparison_id]
        sides = (shown.completion_a, shown.completion_b)
        left, right = reversed(sides) if card.is_swapped else sides
        found.append(
            PracticeCardOut(
                comparison_id=card.comparison_id, prompt=shown.prompt, left=left, right=right
            )
        )
    return tuple(found)

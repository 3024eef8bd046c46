"""Routes of the practice round: its cards, and the known answer of each. No choice is sent."""

from typing import Annotated, Literal

from fastapi import Depends
from pydantic import Field

from rlhf_pipeline.api_types.base import Answer
from rlhf_pipeline.permissions import Permission, Principal
from rlhf_pipeline.records import VisibleRules
from rlhf_pipeline.web.annotate.cards import select_visible, swap_side
from rlhf_pipeline.web.routing import AnySite, api_router, needs, problem_responses
from rlhf_pipeline.web.site import Site

api = api_router("practice")
Annotator = Annotated[Principal, Depends(needs(Permission.VOTES_CAST))]


class PracticeCardOut(Answer):
    """A comparison with a known answer, its completions on drawn sides."""

    comparison_id: str
    prompt: str
    left: str
    right: str


class PracticeOut(Answer):
    """What a new annotator does before the first vote."""

    guideline_version: int | None
    rules: VisibleRules
    cards: tuple[PracticeCardOut, ...] = Field(
        description="What is left of your round: up to four comparisons. It takes one of four gold "
        "ones; the others are of checkable prompts, with one right completion and one wrong."
    )


class PracticeAnswer(Answer):
    choice: Literal["a", "b", "tie"] = Field(description="The known answer; a is the left side.")
    reason: str | None = Field(
        default=None, description="Why it is the right one, where that is known."
    )


@api.get("/practice")
def read(site: AnySite, principal: Annotator) -> PracticeOut:
    """Your practice round: comparisons with a known answer, before your first vote. Empty where the
    project has too few of them, and once you have voted."""
    terms = site.terms()
    return PracticeOut(
        guideline_version=terms.guideline_version,
        rules=select_visible(terms.rules),
        cards=_find_cards(site, principal),
    )


@api.post("/practice/{comparison_id}:reveal", responses=problem_responses(404))
def reveal(site: AnySite, principal: Annotator, comparison_id: str) -> PracticeAnswer:
    """The known answer of a card of your round. The comparison is not dealt to you later."""
    known = site.known_answers()
    others = {each: answer.choice for each, answer in known.items()}
    is_swapped, answer = site.store.cards.reveal(
        principal.user_id, comparison_id, site.terms().rules, others
    )
    choice = swap_side(answer, is_swapped)
    reason = None
    if comparison_id in known:
        reason = f"only {choice.upper()} gives the right answer, {known[comparison_id].reference}"
    return PracticeAnswer.model_validate({"choice": choice, "reason": reason})


def has_welcome(site: Site, principal: Principal) -> bool:
    """Whether the annotate page begins with guidelines or a practice round."""
    if site.store.cards.has_voted(principal.user_id):
        return False
    return site.terms().guideline_version is not None or bool(_deal(site, principal))


def _find_cards(site: Site, principal: Principal) -> tuple[PracticeCardOut, ...]:
    dealt = _deal(site, principal)
    texts = site.store.comparisons.texts(list(dealt))
    found = []
    for comparison_id, is_swapped in dealt.items():
        shown = texts[comparison_id]
        sides = (shown.completion_a, shown.completion_b)
        left, right = reversed(sides) if is_swapped else sides
        found.append(
            PracticeCardOut(
                comparison_id=comparison_id, prompt=shown.prompt, left=left, right=right
            )
        )
    return tuple(found)


def _deal(site: Site, principal: Principal) -> dict[str, bool]:
    rules = site.terms().rules
    return site.store.cards.practice(principal.user_id, rules, list(site.known_answers()))

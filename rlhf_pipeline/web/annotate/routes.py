"""Routes of judging: lease, release and extend cards; the page where people judge."""

from typing import Annotated

from fastapi import APIRouter, Depends, Request, Response
from pydantic import Field
from starlette.concurrency import run_in_threadpool

from rlhf_pipeline.core.api_types.base import MOST_AT_ONCE, RequestBody
from rlhf_pipeline.core.api_types.votes import CardOut, Extended, Lease, RatingFields, RatingReceipt
from rlhf_pipeline.core.conversations import split_turns
from rlhf_pipeline.core.records import CardKind
from rlhf_pipeline.web.annotate.cards import select_visible
from rlhf_pipeline.web.annotate.ratings import record_rating
from rlhf_pipeline.web.permissions import Permission, Principal
from rlhf_pipeline.web.rendering import STRENGTHS, render
from rlhf_pipeline.web.routing import AnySite, RequiredKey, api_router, needs, problem_responses
from rlhf_pipeline.web.site import Site

api = api_router("cards")
pages = APIRouter()
Annotator = Annotated[Principal, Depends(needs(Permission.VOTES_CAST))]
STEP = 10  # an estimate: others may lease some of them in the next moment


class LeaseRequest(RequestBody):
    n: int = Field(default=5, ge=1, le=MOST_AT_ONCE)
    ratings: bool = Field(default=False, description="Also deal cards to rate, if the rules do.")


@api.post("/cards:lease", response_model=Lease)
async def lease(site: AnySite, principal: Annotator, body: LeaseRequest | None = None) -> Response:
    """Lease cards to judge. Cards you still hold come first. A lease lasts `lease_minutes`; later
    votes are accepted as well.
    """
    async with site.leases:
        return await run_in_threadpool(
            _build_lease_response, site, principal.user_id, body or LeaseRequest()
        )


def _build_lease_response(site: Site, annotator_id: str, request: LeaseRequest) -> Response:
    terms = site.terms()
    cards = site.cards.deal(annotator_id, request.n, terms.rules, ratings=request.ratings)
    remaining = site.store.cards.remaining_for(annotator_id, terms.rules)
    answer = Lease(
        cards=[
            CardOut.model_construct(
                card_id=content.card.card_id,
                kind="rating" if content.card.kind == CardKind.RATING else "comparison",
                prompt=content.texts.prompt,
                turns=split_turns(content.texts.prompt),
                left=content.left,
                right="" if content.card.kind == CardKind.RATING else content.right,
                leased_until=content.card.leased_until,
            )
            for content in cards
        ],
        rules=select_visible(terms.rules),
        guideline_version=terms.guideline_version,
        remaining=-(-remaining.n // STEP) * STEP,
        reason_empty=None if cards else remaining.reason_empty,
    )
    return Response(answer.model_dump_json(), media_type="application/json")


@api.post("/ratings", status_code=201, responses=problem_responses(404, 409))
def rate(
    site: AnySite, principal: Annotator, body: RatingFields, key: RequiredKey
) -> RatingReceipt:
    """Rate the completion of a card, skip it, or undo that. Ratings are feedback, which curators
    approve for training.
    """
    return record_rating(site, principal, body, key)


@api.post("/cards/{card_id}:release", status_code=204)
def release(site: AnySite, principal: Annotator, card_id: str) -> Response:
    """Return a card before its lease ends."""
    site.cards.release(card_id, principal.user_id)
    return Response(status_code=204)


@api.post("/cards:extend")
def extend(site: AnySite, principal: Annotator) -> Extended:
    """Extend the leases of all cards you hold to `lease_minutes` from now."""
    return Extended(n=site.store.cards.extend(principal.user_id, site.terms().rules.lease_minutes))


# key, side and strength; the key between 4 and 6 says equal
SCALE = (
    *(("1", "a", 4), ("2", "a", 3), ("3", "a", 2), ("4", "a", 1)),
    *(("6", "b", 1), ("7", "b", 2), ("8", "b", 3), ("9", "b", 4)),
)

# key and meaning of the ratings
RATINGS = (("1", "poor"), ("2", "weak"), ("3", "fair"), ("4", "good"), ("5", "excellent"))

KEY_MAP = (
    ("1234", "A is much, clearly, somewhat, slightly better"),
    ("5=", "equally good"),
    ("6789", "B is slightly, somewhat, clearly, much better"),
    ("0", "both bad"),
    ("12345", "on a single completion: poor, weak, fair, good, excellent"),
    ("s", "skip: leave it to other annotators"),
    (
        ("u", "Backspace"),
        "undo the last vote, then the one before it: up to ten, within the time the project allows",
    ),
    ("r", "write a reason; Enter leaves the field and casts a vote that needs the reason"),
    ("c", "confidence: then 5 for 50% to 9 for 90%, 0 for 100%"),
    ("d", "rubric: then a, b or = for each dimension, arrows to move, Enter to leave"),
    (
        ("+", "-"),
        "mark the selected text as a strength or weakness; the same key again removes the mark",
    ),
    (
        "h",
        "select text with keys: arrows move, Shift extends, Tab changes the side, Escape ends",
    ),
    ("f", "flag: contains personal data"),
    ("i", "flag: a completion names the model that wrote it"),
    ("x", "flag: unreadable"),
    ("m", "show the text with or without formatting"),
    ("o", "show the whole prompt"),
    ("w", "mark what differs in nearly equal completions: words, blanks, invisible characters"),
    ("t", "on a narrow screen: show the other completion"),
    (("↑", "↓", "Space"), "scroll both completions"),
    ("g", "guidelines"),
    ("p", "pause: hide the comparison and stop the clock"),
    ("v", "fast or careful mode: in careful mode a key chooses and Enter casts"),
    ("?", "this table; Escape closes it"),
)


@pages.get("/annotate")
def show_page(site: AnySite, request: Request, principal: Annotator) -> Response:
    terms = site.terms()
    return render(
        "annotate/page.html",
        request,
        site,
        principal,
        scale=SCALE,
        ratings=RATINGS,
        strengths=STRENGTHS,
        key_map=KEY_MAP,
        welcome=None if site.store.cards.has_voted(principal.user_id) else terms.guideline_version,
        dimensions=terms.rules.dimensions,
    )

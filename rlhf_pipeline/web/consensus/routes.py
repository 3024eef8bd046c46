"""Routes of consensus: the combined judgement on each comparison."""

from typing import Annotated, Any, Literal

from fastapi import APIRouter, Depends, Query, Request, Response
from pydantic import Field

from rlhf_pipeline.core.api_types.base import Id, Page, RequestBody
from rlhf_pipeline.core.errors import NotFound, UnknownComparison
from rlhf_pipeline.core.records import Adjudication, Text
from rlhf_pipeline.web.comparisons import offers
from rlhf_pipeline.web.comparisons.offers import Offer
from rlhf_pipeline.web.consensus import queries
from rlhf_pipeline.web.consensus.queries import ConsensusFilter, ConsensusOut
from rlhf_pipeline.web.forms import EMPTY_FORM, Fields, Form, attempt, validate
from rlhf_pipeline.web.lists import (
    FilterField,
    RowList,
    page_filter,
    show_list,
)
from rlhf_pipeline.web.permissions import Permission, Principal
from rlhf_pipeline.web.problems import Problem
from rlhf_pipeline.web.rendering import choice_words, names_for, query_of, see_other
from rlhf_pipeline.web.routing import AnySite, api_router, needs, problem_responses
from rlhf_pipeline.web.site import Site

api = api_router("consensus")
pages = APIRouter()
Reader = Annotated[Principal, Depends(needs(Permission.CONSENSUS_READ))]
Expert = Annotated[Principal, Depends(needs(Permission.CONSENSUS_DECIDE))]
Offerer = Annotated[Principal, Depends(needs(Permission.COMPARISONS_OFFER))]
FIELDS = [
    FilterField(
        "state",
        "State",
        choices={
            "disputed": "disputed",
            "agreed": "agreed",
            "decided": "decided by an expert",
            "open": "too few judgements",
            "all": "all",
        },
        default="disputed",
    ),
    FilterField(
        "method",
        "Weights",
        choices={
            "majority": "equal",
            "strength_weighted": "by strength",
            "joint_model": "annotator model",
        },
        default="majority",
    ),
]


def _describe(site: Site, principal: Principal, page: Page[ConsensusOut]) -> dict[str, Any]:
    ids = [item.comparison_id for item in page.items]
    may_read = principal.may(Permission.COMPARISONS_READ)
    return {
        "texts": site.store.comparisons.texts(ids) if may_read else {},
        "names": names_for(site, principal),
        "people": offers.list_people(site, principal),
        "has_votes": site.store.votes.max_seq() > 0,
        "min_votes": site.terms().rules.agreement_votes,
    }


CONSENSUS = RowList(
    "Consensus",
    "/consensus",
    "consensus/page.html",
    ConsensusOut,
    key="comparison_id",
    read=queries.page,
    fields=lambda *_: FIELDS,
    describe=_describe,
)


class Deciding(RequestBody):
    comparison_id: Id
    choice: Literal["a", "b", "tie", "both_bad"]
    reason: Annotated[Text, Field(min_length=1, max_length=2_000)]


class Undoing(RequestBody):
    comparison_id: Id
    reason: Annotated[Text, Field(max_length=2_000)] = ""


@api.get("/consensus", responses=problem_responses(409))
def read(
    site: AnySite,
    principal: Reader,
    filters: Annotated[ConsensusFilter, Query()],
) -> Page[ConsensusOut]:
    """The combined judgement on each comparison, the most recently judged first. With
    `state=disputed` the list covers the five hundred most recently judged at a time, the most
    evenly split first. A page may be short and still have a `next`.

    joint_model leaves out comparisons that were first judged after its fit. Without a fit the
    answer is 409, `not_fitted`."""
    return queries.page(site, principal, filters)


@api.post("/consensus:decide", status_code=201, responses=problem_responses(404))
def adjudicate(site: AnySite, principal: Expert, body: Deciding) -> Adjudication:
    """Decide on a comparison, with a reason. It is disputed no longer, and the next fit leaves out
    the votes against the decision. An earlier decision no longer stands."""
    return site.store.adjudications.add(
        body.comparison_id, body.choice, reason=body.reason, actor=principal.user_id
    )


@api.post("/consensus:undo", status_code=204, responses=problem_responses(404))
def undo(site: AnySite, principal: Expert, body: Undoing) -> None:
    """Take back the decision that stands on a comparison. All its votes count again."""
    site.store.adjudications.undo(body.comparison_id, reason=body.reason, actor=principal.user_id)


def read_shown(
    filters: Annotated[ConsensusFilter, page_filter(ConsensusFilter)],
) -> ConsensusFilter:
    """The list that a page and its file show: disputed comparisons if the address names none."""
    if "state" in filters.model_fields_set:
        return filters
    return filters.model_copy(update={"state": "disputed"})


Shown = Annotated[ConsensusFilter, Depends(read_shown)]


@pages.get("/consensus")
def show_page(site: AnySite, request: Request, principal: Reader, selection: Shown) -> Response:
    return _show(site, request, principal, selection)


@pages.post("/consensus/decide")
def submit_decision(
    site: AnySite, request: Request, principal: Expert, selection: Shown, form: Form
) -> Response:
    values: dict[str, object] = {
        name: form.text(name).strip() for name in ("comparison_id", "choice", "reason")
    }
    done, problem = attempt(
        lambda: adjudicate(site, principal, validate(Deciding, values)), UnknownComparison
    )
    if done is None:
        return _show(site, request, principal, selection, problem=problem, draft=form)
    return _show_again(selection, f"Decided: {choice_words(str(done.choice), None)}.")


@pages.post("/consensus/undo")
def submit_undo(
    site: AnySite, request: Request, principal: Expert, selection: Shown, form: Form
) -> Response:
    values: dict[str, object] = {"comparison_id": form.text("comparison_id")}
    _, problem = attempt(lambda: undo(site, principal, validate(Undoing, values)), NotFound)
    if problem is not None:
        return _show(site, request, principal, selection, problem=problem, draft=form)
    return _show_again(selection, "The decision is undone. All votes count again.")


@pages.post("/consensus/offer")
def submit_offer(
    site: AnySite, request: Request, principal: Offerer, selection: Shown, form: Form
) -> Response:
    who = form.text("annotator_id")
    values: dict[str, object] = {"ids": [form.text("comparison_id")], "annotator_id": who}
    done, problem = attempt(
        lambda: offers.offer(site, principal, validate(Offer, values)), NotFound, UnknownComparison
    )
    if done is None:
        return _show(site, request, principal, selection, problem=problem, draft=form)
    return _show_again(selection, offers.describe(site, principal, done, who))


def _show(
    site: Site,
    request: Request,
    principal: Principal,
    filters: ConsensusFilter,
    *,
    problem: Problem | None = None,
    draft: Fields = EMPTY_FORM,
) -> Response:
    """`draft`: the refused form, which the row of its comparison shows again."""
    opened = draft.text("comparison_id")
    more: dict[str, Any] = {"problem": problem, "draft": draft, "opened": opened}
    return show_list(CONSENSUS, request, site, principal, filters, **more)


def _show_again(filters: ConsensusFilter, notice: str) -> Response:
    """The same list after a form."""
    return see_other(f"/consensus?{query_of(filters.here)}", notice=notice)

"""Routes of consensus: the combined judgement on each comparison."""

from typing import Annotated, Literal

from fastapi import APIRouter, Depends, Query, Request, Response

from rlhf_pipeline.api_types.base import Page
from rlhf_pipeline.api_types.comparisons import ConsensusOut
from rlhf_pipeline.permissions import Permission
from rlhf_pipeline.votes.consensus import Method, State
from rlhf_pipeline.web.auth import Principal
from rlhf_pipeline.web.blindness import blind_reader_id
from rlhf_pipeline.web.consensus import queries
from rlhf_pipeline.web.dependencies import AnySite, needs
from rlhf_pipeline.web.downloads import AT_ONCE, csv_of, read_all_pages
from rlhf_pipeline.web.pagination import Cursor, Limit
from rlhf_pipeline.web.problems import Problem
from rlhf_pipeline.web.rendering import query_of, render
from rlhf_pipeline.web.routing import api_router, problem_responses

api = api_router("consensus")
pages = APIRouter()
Reader = Annotated[Principal, Depends(needs(Permission.CONSENSUS_READ))]
SHOWN = 50
STATES = (
    ("disputed", "disputed: needs a decision"),
    ("agreed", "agreed"),
    ("open", "open: too few judgements"),
    ("all", "all"),
)
METHODS = (
    ("majority", "majority: equal weights"),
    ("strength_weighted", "weighted by strength"),
    ("joint_model", "annotator model"),
)

NOT_JUDGED = ("No matches", "None of the comparisons that you have judged match.")
# titles of lists that the annotator model cannot provide
INSTEAD = {"not_fitted": "Not fitted yet", "fit_changed": "The model was fitted again"}


@api.get("/consensus", responses=problem_responses(409))
def read(
    site: AnySite,
    principal: Annotated[Principal, Depends(needs(Permission.CONSENSUS_READ))],
    state: Annotated[
        State | None,
        Query(description="Only comparisons in this state; disputed ones need a decision."),
    ] = None,
    method: Annotated[
        Method, Query(description="joint_model uses the last fit of the annotator model.")
    ] = "majority",
    cursor: Cursor = None,
    limit: Limit = 50,
) -> Page[ConsensusOut]:
    """The combined judgement on each comparison, the most recently judged first. With
    `state=disputed` the list covers the five hundred most recently judged at a time, the most
    evenly split first. A page may be short and still have a `next`. Users who may vote get only
    comparisons they have judged, and cannot use joint_model.

    joint_model leaves out comparisons that were first judged after its fit. Without a fit the
    answer is 409, `not_fitted`. A cursor of an earlier fit is answered with 409, `fit_changed`:
    start with the first page."""
    return queries.page(site, principal, state, method, cursor=cursor, limit=limit).page


@pages.get("/consensus")
def show_page(
    site: AnySite,
    request: Request,
    principal: Reader,
    state: State | Literal["all"] = "disputed",
    method: Method = "majority",
    cursor: Cursor = None,
) -> Response:
    is_blind = blind_reader_id(principal) is not None
    try:
        found = queries.page(
            site, principal, None if state == "all" else state, method, cursor=cursor, limit=SHOWN
        )
        nothing = (
            NOT_JUDGED
            if is_blind
            else _empty_message(
                found, state, queries.params_of(site).min_votes, is_first=cursor is None
            )
        )
    except Problem as problem:
        if problem.kind not in INSTEAD:
            raise
        found = queries.ConsensusPage(Page(items=[], next=None), 0)
        nothing = (INSTEAD[problem.kind], problem.detail)
    page = found.page
    n_since, of_next = (
        (0, None) if found.up_to_seq is None else queries.count_since(site, found.up_to_seq)
    )
    texts = (
        site.store.comparisons.texts([one.comparison_id for one in page.items])
        if principal.may(Permission.COMPARISONS_READ)
        else {}
    )
    return render(
        "consensus/page.html",
        request,
        site,
        principal,
        notice="You may vote, so this page lists only comparisons that you have judged."
        if is_blind
        else None,
        page=page,
        nothing=nothing,
        up_to_seq=found.up_to_seq,
        n_since=n_since,
        of_next=of_next,
        state=state,
        method=method,
        states=STATES,
        methods=[one for one in METHODS if not is_blind or one[0] != "joint_model"],
        query=query_of({"state": state, "method": method}),
        prompts={one: known.prompt for one, known in texts.items()},
    )


@pages.get("/consensus.csv")
def download(
    site: AnySite,
    principal: Reader,
    state: State | Literal["all"] = "disputed",
    method: Method = "majority",
) -> Response:
    wanted = None if state == "all" else state
    fitted = None
    if method == "joint_model":
        queries.refuse_model(principal)
        # one fit for all lines; a problem must be raised before the file begins
        fitted = queries.newest_fit(site)
    rows = read_all_pages(
        lambda cursor: (
            queries.page(
                site, principal, wanted, method, cursor=cursor, limit=AT_ONCE, fitted=fitted
            ).page
        )
    )
    return csv_of("consensus", list(ConsensusOut.model_fields), rows)


def _empty_message(
    found: queries.ConsensusPage, state: str, min_votes: int, *, is_first: bool
) -> tuple[str, str]:
    """Title and text of an empty page."""
    if found.page.next is not None:
        return (
            "None on this page",
            "No match among the comparisons that this page covers. More continues with earlier "
            "ones.",
        )
    if not is_first:
        return "No more", "The list ends here."
    if found.n_judged == 0 and found.up_to_seq is not None:
        return (
            "None known",
            "The annotator model covers none of these comparisons: they were first judged after "
            "its fit, or are flagged.",
        )
    if found.n_judged == 0:
        return (
            "No judgements yet",
            "Offer comparisons to annotators with an overlap of 2 or more: consensus needs several "
            "judgements of each comparison.",
        )
    return {
        "disputed": (
            "No disputes",
            f"No comparison with judgements by {min_votes} or more people is disputed.",
        ),
        "agreed": (
            "Nothing agreed yet",
            f"No comparison has a winner from {min_votes} or more people yet.",
        ),
        "open": (
            "Nothing open",
            f"Every judged comparison has judgements by {min_votes} or more people.",
        ),
    }.get(state, ("No comparisons", "No comparison is judged."))

"""Routes of consensus: what annotators together say of each comparison."""

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


@api.get("/consensus", responses=problem_responses(409))
def read(
    site: AnySite,
    principal: Annotated[Principal, Depends(needs(Permission.CONSENSUS_READ))],
    state: Annotated[
        State | None, Query(description="disputed ones are for somebody to decide")
    ] = None,
    method: Annotated[
        Method, Query(description="joint_model is the annotator model's, as it was fitted last")
    ] = "majority",
    cursor: Cursor = None,
    limit: Limit = 50,
) -> Page[ConsensusOut]:
    """What several people together say of each comparison, the most recently judged first; of
    disputed ones, five hundred of the most recently judged at a time, the most evenly split first.
    A page may be short and still have a next. Users who may vote get only comparisons they have
    judged, and not by joint_model. By joint_model comparisons that were first judged after the fit
    are left out; before there is one the answer is 409, `not_fitted`; `next` of a page by an
    earlier fit is answered 409, `fit_changed`: begin with the first."""
    return queries.page(site, principal, state, method, cursor=cursor, limit=limit).page


pages = APIRouter()
Reader = Annotated[Principal, Depends(needs(Permission.CONSENSUS_READ))]
SHOWN = 50
STATES = (
    ("disputed", "disputed: for adjudication"),
    ("agreed", "agreed"),
    ("open", "open: too few judgements"),
    ("all", "all"),
)
METHODS = (
    ("majority", "each the same"),
    ("strength_weighted", "by their strength"),
    ("joint_model", "by who cast them: annotator model"),
)

NOT_JUDGED = ("None here", "None of the comparisons that you have judged.")
# of a list that the annotator model cannot give
INSTEAD = {"not_fitted": "Not fitted yet", "fit_changed": "Fitted anew meanwhile"}


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
    except Problem as told:
        if told.kind not in INSTEAD:
            raise
        found, nothing = (
            queries.ConsensusPage(Page(items=[], next=None), 0),
            (INSTEAD[told.kind], told.detail),
        )
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
        told="You may vote, so only comparisons that you have judged are listed."
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
        # one for all lines; a problem is told before the file begins
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
    """Title and text of a page without a row: what was found, and no more than that."""
    if found.page.next is not None:
        return (
            "None here",
            "None among the comparisons that this page looked at. It goes on with those that were "
            "judged before them.",
        )
    if not is_first:
        return "No more", "The list ends here."
    if found.n_judged == 0 and found.up_to_seq is not None:
        return (
            "None known",
            "The annotator model knows no comparison here: they were first judged after it was "
            "fitted, or are flagged.",
        )
    if found.n_judged == 0:
        return (
            "No judgements yet",
            "Nobody has judged a comparison. Offer some to people, with an overlap of 2 or more: "
            "consensus needs several of each.",
        )
    return {
        "disputed": (
            "No disputes",
            f"No comparison that {min_votes} or more people judged is disputed. Those for "
            "adjudication would stand here.",
        ),
        "agreed": (
            "Nothing agreed yet",
            f"No comparison has a winner by the judgements of {min_votes} or more people.",
        ),
        "open": (
            "Nothing open",
            f"Every comparison that somebody judged has the judgements of {min_votes} or more "
            "people.",
        ),
    }.get(state, ("Nothing here", "No comparison is judged."))

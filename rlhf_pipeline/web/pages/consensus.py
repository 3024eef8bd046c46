"""What people agree and disagree on, as a page: disputes first, for whoever adjudicates. Knows filters; the rest is `web.consensus`'s."""

from typing import Annotated, Literal

from fastapi import APIRouter, Depends, Request, Response

from rlhf_pipeline.votes.consensus import Method, State
from rlhf_pipeline.web import consensus
from rlhf_pipeline.web.auth import Principal
from rlhf_pipeline.web.dependencies import AnySite, needs
from rlhf_pipeline.web.pages.downloads import AT_ONCE, csv_of, every
from rlhf_pipeline.web.pages.rendering import query_of, render
from rlhf_pipeline.web.paging import Cursor
from rlhf_pipeline.web.permissions import Permission
from rlhf_pipeline.web.schemas import ConsensusOut

router = APIRouter()
Reader = Annotated[Principal, Depends(needs(Permission.CONSENSUS_READ))]
SHOWN = 50
STATES = (("disputed", "disputed: for adjudication"), ("agreed", "agreed"), ("open", "open: too few judgements"), ("all", "all"))
METHODS = (("majority", "each the same"), ("strength_weighted", "by their strength"))


@router.get("/consensus")
def read(
    site: AnySite,
    request: Request,
    principal: Reader,
    state: State | Literal["all"] = "disputed",
    method: Method = "majority",
    cursor: Cursor = None,
) -> Response:
    page = consensus.page(site, None if state == "all" else state, method, cursor=cursor, limit=SHOWN)
    texts = site.store.comparisons.texts([one.comparison_id for one in page.items]) if principal.may(Permission.COMPARISONS_READ) else {}
    return render(
        "consensus.html",
        request,
        site,
        principal,
        page=page,
        state=state,
        method=method,
        states=STATES,
        methods=METHODS,
        query=query_of({"state": state, "method": method}),
        prompts={one: known.prompt for one, known in texts.items()},
    )


@router.get("/consensus.csv", dependencies=[Depends(needs(Permission.CONSENSUS_READ))])
def download(site: AnySite, state: State | Literal["all"] = "disputed", method: Method = "majority") -> Response:
    wanted = None if state == "all" else state
    rows = every(lambda cursor: consensus.page(site, wanted, method, cursor=cursor, limit=AT_ONCE))
    return csv_of("consensus", list(ConsensusOut.model_fields), rows)

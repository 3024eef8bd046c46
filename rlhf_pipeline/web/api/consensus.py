"""What people agree and disagree on. Knows pages of it; what agreement is stands in
`rlhf_pipeline.votes.consensus`.
"""

from typing import Annotated

from fastapi import Depends, Query

from rlhf_pipeline.api_types.base import Page
from rlhf_pipeline.api_types.comparisons import ConsensusOut
from rlhf_pipeline.permissions import Permission
from rlhf_pipeline.votes.consensus import Method, State
from rlhf_pipeline.web import consensus
from rlhf_pipeline.web.api.routing import api_router, problem_responses
from rlhf_pipeline.web.auth import Principal
from rlhf_pipeline.web.dependencies import AnySite, needs
from rlhf_pipeline.web.pagination import Cursor, Limit

router = api_router("consensus")


@router.get("/consensus", responses=problem_responses(409))
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
    return consensus.page(site, principal, state, method, cursor=cursor, limit=limit).page

"""One completion of a prompt by the provider, as it is made. Knows requests and events; asking is
`web.completer`.
"""

from typing import Annotated, Any

from fastapi import Depends

from rlhf_pipeline.api_types.predictions import ToComplete
from rlhf_pipeline.completions import CompletionParams
from rlhf_pipeline.permissions import Permission
from rlhf_pipeline.web.api.routing import api_router, problem_responses
from rlhf_pipeline.web.auth import Principal
from rlhf_pipeline.web.dependencies import AnySite, needs
from rlhf_pipeline.web.idempotency import keeps_own_key
from rlhf_pipeline.web.streams import EventStream

router = api_router("completions")
Asker = Annotated[Principal, Depends(needs(Permission.PREDICTIONS_MAKE))]
EVENTS: dict[int | str, dict[str, Any]] = {
    200: {
        "description": "events `piece` ({text}) as they come, `again` where a stream broke off and "
        "what came does not count, and at last `completion` (the whole, as it is kept) or `failed` "
        "({error})",
        "content": {"text/event-stream": {"schema": {"type": "string"}}},
    }
}


@router.post(
    "/completions:stream",
    status_code=200,
    responses=EVENTS | problem_responses(429),
    response_class=EventStream,
)
@keeps_own_key
def stream(site: AnySite, principal: Asker, body: ToComplete) -> EventStream:
    """One completion by the provider of the settings, as server-sent events. It is kept: the same
    request again is answered from there.
    """
    params = CompletionParams(
        k=1,
        temperatures=[body.temperature],
        top_ps=[body.top_p],
        max_new_tokens=body.max_tokens,
        seed=body.seed,
        system=body.system,
    )
    return EventStream(
        site.streams, principal.token.token_id, lambda: site.completer.stream(body.prompt, params)
    )

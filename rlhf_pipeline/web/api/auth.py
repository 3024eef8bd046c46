"""Logging in and out. Knows cookies; the rules of passwords and throttling stand in `web.auth`."""

from fastapi import Depends, Request, Response

from rlhf_pipeline.api_types.accounts import Login, Redemption
from rlhf_pipeline.web.api.routing import api_router, problem_responses
from rlhf_pipeline.web.dependencies import AnySite, SignedIn, address_of, public
from rlhf_pipeline.web.idempotency import keeps_no_record
from rlhf_pipeline.web.problems import Problem

router = api_router("auth")
OPEN = [Depends(public("nobody is logged in before logging in"))]


@router.post(
    "/auth/login", status_code=204, dependencies=OPEN, responses=problem_responses(401, 429)
)
def log_in(site: AnySite, request: Request, body: Login) -> Response:
    """Start a session: the answer sets its cookie."""
    response = Response(status_code=204)
    device = request.cookies.get(site.auth.device_cookie)
    site.auth.log_in(
        response, body.email, body.password, address=address_of(request), device=device
    )
    return response


@router.post("/auth/redeem", status_code=204, dependencies=OPEN, responses=problem_responses(401))
def redeem(site: AnySite, body: Redemption) -> Response:
    """Start a session by a one-time login link's token."""
    response = Response(status_code=204)
    site.auth.redeem(response, body.token)
    return response


@router.post("/auth/logout", status_code=204)
@keeps_no_record
def log_out(site: AnySite, principal: SignedIn) -> Response:
    """End this session. An Idempotency-Key is passed over: who repeats it is nobody any more."""
    if not principal.is_session:
        raise Problem(
            403, "A token has no session to end. Revoke it under /me/tokens.", kind="no_session"
        )
    response = Response(status_code=204)
    site.auth.end_session(response, principal)
    return response

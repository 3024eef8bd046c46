"""Oneself: who one is, one's tokens, password, votes and figures. Knows only who asks."""

from datetime import timedelta
from typing import Annotated

from fastapi import Depends, Response

from rlhf_pipeline.api_types.accounts import IssuedToken, Me, NewToken, PasswordChange, TokenOut
from rlhf_pipeline.api_types.base import Page
from rlhf_pipeline.api_types.votes import OwnVote, Statistics
from rlhf_pipeline.permissions import Permission
from rlhf_pipeline.web import lists
from rlhf_pipeline.web.api.routing import api_router, problem_responses
from rlhf_pipeline.web.auth import Principal
from rlhf_pipeline.web.dependencies import AnySite, SignedIn, needs
from rlhf_pipeline.web.idempotency import keeps_no_record, runs_once
from rlhf_pipeline.web.pagination import Cursor, Limit
from rlhf_pipeline.web.problems import Problem

router = api_router("me")
Voter = Annotated[Principal, Depends(needs(Permission.VOTES_READ_OWN))]
Owner = Annotated[Principal, Depends(needs(Permission.TOKENS_OWN))]


@router.get("/me")
def me(site: AnySite, principal: SignedIn) -> Me:
    """Who you are here and what you may do with this token."""
    user = principal.user
    return Me(
        user_id=user.user_id,
        name=user.name,
        email=user.email,
        roles=list(user.all_roles),
        permissions=sorted(principal.permissions),
        project=site.settings.project,
    )


@router.get("/me/statistics")
def my_statistics(site: AnySite, principal: Voter) -> Statistics:
    """Your pace, and how you agree with yourself and with known answers."""
    return site.vote_counter.figures.for_annotator(principal.user_id)


@router.get("/me/votes")
def my_votes(
    site: AnySite, principal: Voter, cursor: Cursor = None, limit: Limit = 50
) -> Page[OwnVote]:
    """Your votes as you cast them, newest first."""
    return lists.own_votes(site, principal.user_id, cursor=cursor, limit=limit)


@router.post("/me/password", status_code=204, responses=problem_responses(429))
@keeps_no_record
def change_password(site: AnySite, principal: SignedIn, body: PasswordChange) -> Response:
    """Set your password. Ends all your sessions but this one. An Idempotency-Key is passed over: no
    trace of a password is kept.
    """
    if not principal.is_session:
        raise Problem(
            403,
            "A password is changed by somebody who is logged in, not by a token.",
            kind="no_session",
        )
    site.auth.check_password(principal.user, body.old_password)
    hashed = site.auth.hash_password(body.new_password)
    site.store.users.set_password(
        principal.user_id, hashed, actor=principal.user_id, asked_by=principal.token.token_id
    )
    site.auth.forget()
    response = Response(status_code=204)
    site.auth.start_session(response, principal.user, password_hash=hashed)
    return response


@router.get("/me/tokens")
def my_tokens(
    site: AnySite, principal: Owner, cursor: Cursor = None, limit: Limit = 50
) -> Page[TokenOut]:
    """Your API tokens, newest first, those that ended too."""
    return lists.own_tokens(site, principal.user_id, cursor=cursor, limit=limit)


@router.post("/me/tokens", status_code=201)
@runs_once()
def make_token(site: AnySite, principal: Owner, body: NewToken) -> IssuedToken:
    """A token with no more permissions than you have. Its secret is shown this once. Made by
    somebody who is logged in, not by a token.
    """
    if not principal.is_session:  # it would outlive its own end, and its revocation
        raise Problem(
            403,
            "A token makes no token. Log in and make it on the page `me`, or have it made on the "
            "server: rlhf users token EMAIL.",
            kind="no_session",
        )
    beyond = sorted(set(body.scopes or ()) - principal.permissions)
    if beyond:
        raise Problem(
            403,
            f"You cannot hand on what you may not do: {', '.join(beyond)}. Leave these scopes out.",
            kind="forbidden",
        )
    secret, token = site.store.tokens.issue(
        principal.user_id,
        kind="api",
        lifetime=timedelta(days=body.days),
        actor=principal.user_id,
        name=body.name,
        scopes=body.scopes,
        asked_by=principal.token.token_id,
    )
    return IssuedToken(secret=secret, **token.model_dump(exclude={"user_id"}))


@router.delete("/me/tokens/{token_id}", status_code=204)
def revoke_token(site: AnySite, principal: Owner, token_id: str) -> Response:
    """It works no more from the next second on."""
    site.store.tokens.revoke(token_id, actor=principal.user_id, user_id=principal.user_id)
    site.auth.forget()
    return Response(status_code=204)

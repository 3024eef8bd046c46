"""Routes of the signed-in user: statistics, own votes, password and tokens."""

from datetime import timedelta
from typing import Annotated

from fastapi import APIRouter, Depends, Request, Response
from pydantic import Field

from rlhf_pipeline.core.api_types.base import Name, Page, RequestBody
from rlhf_pipeline.core.api_types.project import Me
from rlhf_pipeline.core.api_types.votes import Statistics
from rlhf_pipeline.core.errors import NotFound
from rlhf_pipeline.core.records import Text, Token
from rlhf_pipeline.reports.chart import Chart
from rlhf_pipeline.web.forms import Form, attempt, validate
from rlhf_pipeline.web.lists import Cursor, Paged
from rlhf_pipeline.web.me.statistics import OwnVote, own_tokens, own_votes, read_statistics
from rlhf_pipeline.web.permissions import Permission, Principal
from rlhf_pipeline.web.problems import Problem
from rlhf_pipeline.web.rendering import render, see_other
from rlhf_pipeline.web.routing import (
    AnySite,
    SignedIn,
    answer_chart,
    api_router,
    needs,
    problem_responses,
)
from rlhf_pipeline.web.site import Site

pages = APIRouter()
Voter = Annotated[Principal, Depends(needs(Permission.VOTES_READ_OWN))]
Owner = Annotated[Principal, Depends(needs(Permission.TOKENS_OWN))]
SHOWN = 20


class PasswordChange(RequestBody):
    old_password: Annotated[Text, Field(max_length=1000)] | None = None
    new_password: Annotated[Text, Field(max_length=1000)]


class NewToken(RequestBody):
    name: Name
    scopes: list[Permission] | None = Field(default=None, max_length=len(Permission))
    days: int = Field(default=90, ge=1, le=366)


class IssuedToken(Token):
    secret: str = Field(description="Shown only once.")


api, charts = api_router("me"), api_router("charts")


@api.get("/me")
def me(site: AnySite, principal: SignedIn) -> Me:
    """Your account, roles and permissions in this project."""
    user = principal.user
    return Me(
        user_id=user.user_id,
        name=user.name,
        email=user.email,
        roles=list(user.roles),
        permissions=sorted(principal.permissions),
        project=site.settings.project,
    )


@api.get("/me/statistics")
def my_statistics(site: AnySite, principal: Voter) -> Statistics:
    """Your pace, and your agreement with yourself and with known answers."""
    return read_statistics(site.store, principal.user_id)


@charts.get("/charts/me/confidence", response_model=Chart)
def my_confidence(site: AnySite, principal: Voter) -> Response:
    """The share of your votes on known answers that were right, by the confidence you stated."""
    # voting in the terminal starts without numpy
    from rlhf_pipeline.reports.stated_confidence import chart_stated_confidence

    mine = read_statistics(site.store, principal.user_id)
    counts = [(level.stated, level.n, level.right) for level in mine.confidence]
    return answer_chart(chart_stated_confidence(counts))


@api.get("/me/votes")
def my_votes(site: AnySite, principal: Voter, filters: Paged) -> Page[OwnVote]:
    """Your votes as you cast them, newest first."""
    return own_votes(site, principal.user_id, cursor=filters.cursor, limit=filters.limit)


@api.post("/me/password", status_code=204, responses=problem_responses(429))
def change_password(site: AnySite, principal: SignedIn, body: PasswordChange) -> Response:
    """Set your password and end all your other sessions."""
    if not principal.is_session:
        raise Problem(
            403,
            "Tokens cannot change a password. Log in and change it on the page `me`.",
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


@api.get("/me/tokens")
def my_tokens(site: AnySite, principal: Owner, filters: Paged) -> Page[Token]:
    """Your API tokens, newest first, including those that ended."""
    return own_tokens(site, principal.user_id, cursor=filters.cursor, limit=filters.limit)


@api.post("/me/tokens", status_code=201)
def make_token(site: AnySite, principal: Owner, body: NewToken) -> IssuedToken:
    """Create a token with at most your own permissions. Its secret is returned only once. Requires
    a session; tokens are refused.
    """
    if (
        not principal.is_session
    ):  # the new token would outlive the end and the revocation of this one
        raise Problem(
            403,
            "Tokens cannot create tokens. Create it on the page `me`, or on the server: rlhf users "
            "token EMAIL.",
            kind="no_session",
        )
    beyond = sorted(set(body.scopes or ()) - principal.permissions)
    if beyond:
        raise Problem(
            403,
            f"You lack these permissions and cannot grant them: {', '.join(beyond)}. Remove these "
            "scopes.",
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
    return IssuedToken(secret=secret, **token.model_dump())


@api.delete("/me/tokens/{token_id}", status_code=204)
def revoke_token(site: AnySite, principal: Owner, token_id: str) -> Response:
    """Revoke a token. It stops working within a second."""
    site.store.tokens.revoke(token_id, actor=principal.user_id, user_id=principal.user_id)
    site.auth.forget()
    return Response(status_code=204)


@pages.get("/me")
def show_page(
    site: AnySite,
    request: Request,
    principal: SignedIn,
    cursor: Cursor = None,
    tokens: Cursor = None,
) -> Response:
    return _render_page(site, request, principal, cursor=cursor, tokens=tokens)


@pages.post("/me/password")
def submit_password(site: AnySite, request: Request, principal: SignedIn, form: Form) -> Response:
    change = validate(
        PasswordChange,
        {
            "old_password": form.text("old_password") or None,
            "new_password": form.text("new_password"),
        },
    )
    done, problem = attempt(lambda: change_password(site, principal, change))
    if done is None:
        return _render_page(site, request, principal, problem=problem)
    notice = f"Password set. Log in as {principal.user.email}."
    response = see_other("/me", notice=notice)
    response.raw_headers.extend(
        (name, value) for name, value in done.raw_headers if name == b"set-cookie"
    )
    return response


@pages.post("/me/tokens")
def submit_token(site: AnySite, request: Request, principal: Owner, form: Form) -> Response:
    values: dict[str, object] = {
        "name": form.text("name").strip(),
        "scopes": form.all("scopes") or None,
    }
    issued, problem = attempt(
        lambda: make_token(
            site, principal, validate(NewToken, values | {"days": form.number("days") or 90})
        )
    )
    return _render_page(
        site, request, principal, problem=problem, secret=issued.secret if issued else None
    )


@pages.post("/me/tokens/{token_id}/revoke")
def submit_revocation(site: AnySite, request: Request, principal: Owner, token_id: str) -> Response:
    _, problem = attempt(
        lambda: site.store.tokens.revoke(
            token_id, actor=principal.user_id, user_id=principal.user_id
        ),
        NotFound,
    )
    site.auth.forget()
    return _render_page(site, request, principal, problem=problem) if problem else see_other("/me")


def _render_page(
    site: Site,
    request: Request,
    principal: Principal,
    *,
    cursor: str | None = None,
    tokens: str | None = None,
    problem: Problem | None = None,
    secret: str | None = None,
) -> Response:
    votes = principal.may(Permission.VOTES_READ_OWN)
    mine = read_statistics(site.store, principal.user_id) if votes else None
    return render(
        "me/page.html",
        request,
        site,
        principal,
        status=problem.status if problem else 200,
        figures=mine,
        own=own_votes(site, principal.user_id, cursor=cursor, limit=SHOWN) if votes else None,
        tokens=own_tokens(site, principal.user_id, cursor=tokens, limit=SHOWN)
        if principal.may(Permission.TOKENS_OWN)
        else None,
        permissions=sorted(principal.permissions),
        problem=problem.detail if problem else None,
        secret=secret,
    )

"""Oneself as a page: figures, votes, password, tokens. Knows only who asks."""

from dataclasses import dataclass
from math import sqrt

from fastapi import APIRouter, Request, Response

from rlhf_pipeline.api_types.accounts import NewToken, PasswordChange
from rlhf_pipeline.api_types.votes import Confidence
from rlhf_pipeline.errors import NotFound
from rlhf_pipeline.permissions import Permission
from rlhf_pipeline.web import lists
from rlhf_pipeline.web.api.me import Owner, change_password, make_token
from rlhf_pipeline.web.auth import Principal
from rlhf_pipeline.web.dependencies import AnySite, SignedIn
from rlhf_pipeline.web.pages.forms import Form, attempt, validate
from rlhf_pipeline.web.pages.rendering import render, see_other
from rlhf_pipeline.web.pagination import Cursor
from rlhf_pipeline.web.problems import Problem
from rlhf_pipeline.web.site import Site

router = APIRouter()
SHOWN = 20
LARGEST_POINT = 12.0


@dataclass(frozen=True)
class Point:
    """Votes of one stated confidence, on a square of 200 units with a margin of 10."""

    x: float
    y: float
    r: float
    words: str


@router.get("/me")
def read(
    site: AnySite,
    request: Request,
    principal: SignedIn,
    cursor: Cursor = None,
    tokens: Cursor = None,
) -> Response:
    return _render_page(site, request, principal, cursor=cursor, tokens=tokens)


@router.post("/me/password")
def set_password(site: AnySite, request: Request, principal: SignedIn, form: Form) -> Response:
    asked = validate(
        PasswordChange,
        {
            "old_password": form.text("old_password") or None,
            "new_password": form.text("new_password"),
        },
    )
    done, problem = attempt(lambda: change_password(site, principal, asked))
    if done is None:
        return _render_page(site, request, principal, problem=problem)
    response = see_other("/me")
    response.raw_headers.extend(
        (name, value) for name, value in done.raw_headers if name == b"set-cookie"
    )
    return response


@router.post("/me/tokens")
def add_token(site: AnySite, request: Request, principal: Owner, form: Form) -> Response:
    asked: dict[str, object] = {
        "name": form.text("name").strip(),
        "scopes": form.all("scopes") or None,
    }
    issued, problem = attempt(
        lambda: make_token(
            site, principal, validate(NewToken, asked | {"days": form.number("days") or 90})
        )
    )
    return _render_page(
        site, request, principal, problem=problem, secret=issued.secret if issued else None
    )


@router.post("/me/tokens/{token_id}/revoke")
def revoke_token(site: AnySite, request: Request, principal: Owner, token_id: str) -> Response:
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
    mine = site.vote_counter.figures.for_annotator(principal.user_id) if votes else None
    return render(
        "me.html",
        request,
        site,
        principal,
        status=problem.status if problem else 200,
        figures=mine,
        curve=[_build_point(one) for one in mine.confidence] if mine else [],
        own=lists.own_votes(site, principal.user_id, cursor=cursor, limit=SHOWN) if votes else None,
        tokens=lists.own_tokens(site, principal.user_id, cursor=tokens, limit=SHOWN)
        if principal.may(Permission.TOKENS_OWN)
        else None,
        permissions=sorted(principal.permissions),
        problem=problem.detail if problem else None,
        secret=secret,
    )


def _build_point(one: Confidence) -> Point:
    share = one.right / one.n
    size = min(LARGEST_POINT, 3 + sqrt(one.n))
    return Point(
        10 + 200 * one.stated,
        210 - 200 * share,
        round(size, 1),
        f"{one.stated:.0%} sure: {one.right} of {one.n} right",
    )

"""Who may log in, as a page. Knows forms; changes are those of the API's users."""

from typing import Annotated

from fastapi import APIRouter, Depends, Request, Response

from rlhf_pipeline.errors import ConfigurationError
from rlhf_pipeline.records import Role, User
from rlhf_pipeline.web.api.users import add as add_by_api
from rlhf_pipeline.web.api.users import changed_user, unchanged, user_out
from rlhf_pipeline.web.api.users import login_link as link_by_api
from rlhf_pipeline.web.auth import Principal
from rlhf_pipeline.web.dependencies import AnySite, needs
from rlhf_pipeline.web.etags import etag_of_record
from rlhf_pipeline.web.pages.forms import Fields, Form, attempted, checked
from rlhf_pipeline.web.pages.rendering import render
from rlhf_pipeline.web.permissions import Permission
from rlhf_pipeline.web.problems import Problem
from rlhf_pipeline.web.schemas import NewUser, UserChange
from rlhf_pipeline.web.site import Site

router = APIRouter()
Reader = Annotated[Principal, Depends(needs(Permission.USERS_READ))]
Admin = Annotated[Principal, Depends(needs(Permission.USERS_WRITE))]


@router.get("/users")
def read(site: AnySite, request: Request, principal: Reader) -> Response:
    return _page(site, request, principal)


@router.post("/users")
def add(site: AnySite, request: Request, principal: Admin, form: Form) -> Response:
    draft: dict[str, object] = {"email": form.text("email").strip(), "name": form.text("name").strip(), "roles": form.all("roles")}
    added, problem = attempted(lambda: add_by_api(site, principal, Response(), checked(NewUser, draft)), ConfigurationError)
    if added is None:
        return _page(site, request, principal, problem=problem, draft=draft)
    return _page(site, request, principal, link={"name": added.name, "address": added.login_link})


@router.post("/users/{user_id}")
def change(site: AnySite, request: Request, principal: Admin, user_id: str, form: Form) -> Response:
    user, problem = attempted(lambda: _changed(site, principal, user_id, form), ConfigurationError)
    told = f"{user.name} is saved." if user else None
    return _page(site, request, principal, told=told, problem=problem)


@router.post("/users/{user_id}/login-link")
def login_link(site: AnySite, request: Request, principal: Admin, user_id: str) -> Response:
    made = link_by_api(site, principal, user_id)
    return _page(site, request, principal, link={"name": site.store.users.get(user_id).name, "address": made.login_link})


@router.post("/users/{user_id}/disable")
def disable(site: AnySite, request: Request, principal: Admin, user_id: str) -> Response:
    return _able(site, request, principal, user_id, disabled=True)


@router.post("/users/{user_id}/enable")
def enable(site: AnySite, request: Request, principal: Admin, user_id: str) -> Response:
    return _able(site, request, principal, user_id, disabled=False)


def _able(site: Site, request: Request, principal: Principal, user_id: str, *, disabled: bool) -> Response:
    user, problem = attempted(lambda: changed_user(site, principal.user_id, user_id, disabled=disabled), ConfigurationError)
    told = f"{user.name} {'may log in no more; all sessions and tokens ended' if disabled else 'may log in again'}." if user else None
    return _page(site, request, principal, told=told, problem=problem)


def _changed(site: Site, principal: Principal, user_id: str, form: Fields) -> User:
    asked = checked(UserChange, {"name": form.text("name").strip() or None, "roles": form.all("roles")})
    check = unchanged(form.text("if_match"))
    return changed_user(site, principal.user_id, user_id, name=asked.name, roles=asked.roles, check=check)


def _page(
    site: Site,
    request: Request,
    principal: Principal,
    *,
    told: str | None = None,
    problem: Problem | None = None,
    link: dict[str, str | None] | None = None,
    draft: dict[str, object] | None = None,
) -> Response:
    users = site.store.users.all()
    return render(
        "users.html",
        request,
        site,
        principal,
        status=problem.status if problem else 200,
        told=told,
        users=users,
        etags={user.user_id: etag_of_record(user_out(user)) for user in users},
        roles=list(Role),
        link=link,
        problem=problem.detail if problem else None,
        draft=draft or {"email": "", "name": "", "roles": None},
    )

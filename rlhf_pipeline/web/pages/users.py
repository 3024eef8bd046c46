"""Who may log in, as a page. Knows forms; changes are those of the API's users."""

from typing import Annotated

from fastapi import APIRouter, Depends, Request, Response

from rlhf_pipeline.api_types.accounts import NewUser, UserChange
from rlhf_pipeline.errors import ConfigurationError
from rlhf_pipeline.permissions import Permission
from rlhf_pipeline.records import Role, User
from rlhf_pipeline.web import lists
from rlhf_pipeline.web.api.users import add as add_by_api
from rlhf_pipeline.web.api.users import change_user
from rlhf_pipeline.web.api.users import login_link as link_by_api
from rlhf_pipeline.web.auth import Principal
from rlhf_pipeline.web.dependencies import AnySite, needs
from rlhf_pipeline.web.etags import etag_of_record
from rlhf_pipeline.web.pages.forms import Fields, Form, attempt, validate
from rlhf_pipeline.web.pages.rendering import render
from rlhf_pipeline.web.pagination import Cursor
from rlhf_pipeline.web.problems import Problem
from rlhf_pipeline.web.site import Site

router = APIRouter()
Reader = Annotated[Principal, Depends(needs(Permission.USERS_READ))]
Admin = Annotated[Principal, Depends(needs(Permission.USERS_WRITE))]
SHOWN = 50


@router.get("/users")
def read(site: AnySite, request: Request, principal: Reader, cursor: Cursor = None) -> Response:
    return _render_page(site, request, principal, cursor=cursor)


@router.post("/users")
def add(site: AnySite, request: Request, principal: Admin, form: Form) -> Response:
    draft: dict[str, object] = {
        "email": form.text("email").strip(),
        "name": form.text("name").strip(),
    }
    draft |= {"roles": form.all("roles"), "organization_roles": form.all("organization_roles")}
    added, problem = attempt(
        lambda: add_by_api(site, principal, Response(), validate(NewUser, draft)),
        ConfigurationError,
    )
    if added is None:
        return _render_page(site, request, principal, problem=problem, draft=draft)
    return _render_page(
        site, request, principal, link={"name": added.name, "address": added.login_link}
    )


@router.post("/users/{user_id}")
def change(site: AnySite, request: Request, principal: Admin, user_id: str, form: Form) -> Response:
    user, problem = attempt(
        lambda: _change_from_form(site, principal, user_id, form), ConfigurationError
    )
    told = f"{user.name} is saved." if user else None
    return _render_page(site, request, principal, told=told, problem=problem)


@router.post("/users/{user_id}/login-link")
def login_link(site: AnySite, request: Request, principal: Admin, user_id: str) -> Response:
    made, problem = attempt(lambda: link_by_api(site, principal, user_id))
    if made is None:
        return _render_page(site, request, principal, problem=problem)
    return _render_page(
        site,
        request,
        principal,
        link={"name": site.store.users.get(user_id).name, "address": made.login_link},
    )


@router.post("/users/{user_id}/disable")
def disable(site: AnySite, request: Request, principal: Admin, user_id: str) -> Response:
    return _set_disabled(site, request, principal, user_id, disabled=True)


@router.post("/users/{user_id}/enable")
def enable(site: AnySite, request: Request, principal: Admin, user_id: str) -> Response:
    return _set_disabled(site, request, principal, user_id, disabled=False)


def _set_disabled(
    site: Site, request: Request, principal: Principal, user_id: str, *, disabled: bool
) -> Response:
    user, problem = attempt(
        lambda: change_user(site, principal, user_id, UserChange(disabled=disabled)),
        ConfigurationError,
    )
    told = (
        f"{user.name} may log in no more; all sessions and tokens ended."
        if user and disabled
        else f"{user.name} may log in again."
        if user
        else None
    )
    return _render_page(site, request, principal, told=told, problem=problem)


def _change_from_form(site: Site, principal: Principal, user_id: str, form: Fields) -> User:
    said: dict[str, object] = {"roles": form.all("roles")}
    if form.has("name"):  # neither stands in the form for those who may not change it
        said["name"] = form.text("name").strip() or None
    if form.has("says_organization_roles"):
        said["organization_roles"] = form.all("organization_roles")
    return change_user(
        site, principal, user_id, validate(UserChange, said), etag=form.text("if_match")
    )


def _render_page(
    site: Site,
    request: Request,
    principal: Principal,
    *,
    told: str | None = None,
    problem: Problem | None = None,
    link: dict[str, str | None] | None = None,
    draft: dict[str, object] | None = None,
    cursor: str | None = None,
) -> Response:
    users = lists.users(site, cursor=cursor, limit=SHOWN)
    return render(
        "users.html",
        request,
        site,
        principal,
        status=problem.status if problem else 200,
        told=told,
        users=users,
        is_later=cursor is not None,
        of_organization=principal.may_everywhere(Permission.USERS_WRITE),
        etags={user.user_id: etag_of_record(user) for user in users.items},
        roles=list(Role),
        link=link,
        problem=problem.detail if problem else None,
        draft=draft or {"email": "", "name": "", "roles": None, "organization_roles": []},
    )

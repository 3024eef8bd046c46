"""Routes of accounts: list, add and change users, create login links."""

from datetime import datetime
from typing import Annotated, Any, Literal

from fastapi import APIRouter, Depends, Request, Response
from pydantic import Field

from rlhf_pipeline.core.api_types.base import Answer, Name, Page, RequestBody
from rlhf_pipeline.core.api_types.filters import Filter
from rlhf_pipeline.core.errors import ConfigurationError, NotFound
from rlhf_pipeline.core.records import Role, Text, User
from rlhf_pipeline.store.audit import joint_transaction
from rlhf_pipeline.web.forms import Form, attempt, validate
from rlhf_pipeline.web.lists import (
    Paged,
    RowList,
    cursor_problem,
    make_cursor,
    page_filter,
    parse_cursor,
    show_list,
)
from rlhf_pipeline.web.permissions import Permission, Principal
from rlhf_pipeline.web.problems import Problem
from rlhf_pipeline.web.routing import AnySite, api_router, needs
from rlhf_pipeline.web.site import Site

api = api_router("users")
pages = APIRouter()
Admin = Annotated[Principal, Depends(needs(Permission.USERS_WRITE))]
Reader = Annotated[Principal, Depends(needs(Permission.USERS_READ))]
Shown = Annotated[Filter, page_filter(Filter)]


class NewUser(RequestBody):
    email: Annotated[Text, Field(max_length=254)]
    name: Annotated[Text, Field(max_length=200)] = ""
    roles: list[Role] = Field(default=[], max_length=len(Role))
    kind: Literal["person", "service"] = "person"


class AddedUser(User):
    login_link: str | None = Field(
        description="Logs its first visitor in, once, for 24 hours. Null if the request was made "
        "with a token, and in the answer to a repeated request."
    )


class UserChange(RequestBody):
    name: Name | None = None
    roles: list[Role] | None = Field(default=None, max_length=len(Role))
    disabled: bool | None = None


class LoginLink(Answer):
    login_link: str | None
    expires_at: datetime


def _list_users(site: Site, _: Principal, filters: Filter) -> Page[User]:
    """List users by e-mail address. Cursors contain ids, so that access logs contain no
    addresses.
    """
    place = parse_cursor(filters.cursor, str)
    try:
        users = site.store.users.page(after=place[0] if place else None, limit=filters.limit)
    except NotFound:
        raise cursor_problem() from None
    return Page(
        items=users,
        next=make_cursor(users[-1].user_id) if len(users) == filters.limit else None,
    )


USERS = RowList(
    "Users",
    "/users",
    "users/page.html",
    User,
    key="user_id",
    read=_list_users,
    describe=lambda *_: {"roles": list(Role)},
    count=lambda site: site.store.users.count(),
)


@api.get("/users")
def read_all(site: AnySite, principal: Reader, filters: Paged) -> Page[User]:
    """All users, by e-mail address."""
    return _list_users(site, principal, filters)


@api.post("/users", status_code=201)
def add(site: AnySite, principal: Admin, body: NewUser) -> AddedUser:
    """Add a user. The answer contains a login link to deliver, because no mail is sent. A request
    made with a token gets no link, which would outlive the token."""
    link = None
    with joint_transaction(site.store.database):  # never a user without their link
        user = site.store.users.add(**body.model_dump(), actor=principal.user_id)
        if principal.is_session:
            link, _ = site.auth.create_login_link(user.user_id, site.settings.web_url, principal)
    return AddedUser(**user.model_dump(), login_link=link)


@api.patch("/users/{user_id}")
def change(
    site: AnySite,
    principal: Admin,
    user_id: str,
    body: UserChange,
) -> User:
    """Change the name or roles of a user, disable or enable them. Fields left out stay as they
    are.
    """
    return change_user(site, principal, user_id, body)


@api.post("/users/{user_id}:login-link", status_code=201)
def login_link(site: AnySite, principal: Admin, user_id: str) -> LoginLink:
    """Create a link that logs in its first visitor as this user, valid for 24 hours. Requires a
    session; tokens are refused.
    """
    user = site.store.users.get(user_id)
    if not principal.is_session:  # the login would outlive the end and the revocation of the token
        raise Problem(
            403,
            "Tokens cannot create login links. Create it on the page `users`, or on the server: "
            "rlhf users login-link EMAIL.",
            kind="no_session",
        )
    if user.disabled_at is not None:
        raise Problem(422, "This user is disabled. Enable them first.", kind="disabled")
    link, token = site.auth.create_login_link(user_id, site.settings.web_url, principal)
    return LoginLink(login_link=link, expires_at=token.expires_at)


def change_user(site: Site, principal: Principal, user_id: str, change: UserChange) -> User:
    """Applies changes, which take effect with the next request, and returns the user.

    Raises NotFound; ConfigurationError as the store's `change`.
    """
    try:
        return site.store.users.change(user_id, **change.model_dump(), actor=principal.user_id)
    finally:
        site.auth.forget()


@pages.get("/users")
def show_page(site: AnySite, request: Request, principal: Reader, filters: Shown) -> Response:
    return _show(site, request, principal, filters=filters)


@pages.post("/users")
def submit_user(site: AnySite, request: Request, principal: Admin, form: Form) -> Response:
    draft: dict[str, object] = {
        "email": form.text("email").strip(),
        "name": form.text("name").strip(),
        "roles": form.all("roles"),
    }
    added, problem = attempt(
        lambda: add(site, principal, validate(NewUser, draft)),
        ConfigurationError,
    )
    if added is None:
        return _show(site, request, principal, problem=problem, draft=draft)
    link = {"name": added.name, "address": added.login_link}
    return _show(site, request, principal, link=link)


@pages.post("/users/{user_id}")
def submit_change(
    site: AnySite, request: Request, principal: Admin, user_id: str, form: Form
) -> Response:
    values: dict[str, object] = {
        "roles": form.all("roles"),
        "name": form.text("name").strip() or None,
    }
    user, problem = attempt(
        lambda: change_user(site, principal, user_id, validate(UserChange, values)),
        ConfigurationError,
    )
    notice = f"Saved {user.name}." if user else None
    return _show(site, request, principal, notice=notice, problem=problem, opened=user_id)


@pages.post("/users/{user_id}/login-link")
def submit_login_link(site: AnySite, request: Request, principal: Admin, user_id: str) -> Response:
    login, problem = attempt(lambda: login_link(site, principal, user_id))
    if login is None:
        return _show(site, request, principal, problem=problem)
    link = {"name": site.store.users.get(user_id).name, "address": login.login_link}
    return _show(site, request, principal, link=link)


@pages.post("/users/{user_id}/disable")
def disable(site: AnySite, request: Request, principal: Admin, user_id: str) -> Response:
    ended = "{} can no longer log in; all sessions and tokens ended."
    return _set_disabled(site, request, principal, user_id, ended)


@pages.post("/users/{user_id}/enable")
def enable(site: AnySite, request: Request, principal: Admin, user_id: str) -> Response:
    return _set_disabled(site, request, principal, user_id, "{} can log in again.")


def _set_disabled(
    site: Site, request: Request, principal: Principal, user_id: str, words: str
) -> Response:
    change = UserChange(disabled=request.url.path.endswith("/disable"))
    user, problem = attempt(
        lambda: change_user(site, principal, user_id, change), ConfigurationError
    )
    notice = words.format(user.name) if user else None
    return _show(site, request, principal, notice=notice, problem=problem)


def _show(
    site: Site,
    request: Request,
    principal: Principal,
    *,
    filters: Filter = Filter(),  # noqa: B008 (frozen)
    problem: Problem | None = None,
    **more: Any,
) -> Response:
    """`more`: a notice, a login link that is shown once, or the draft of a refused user."""
    more = {"link": None, "draft": {"email": "", "name": "", "roles": None}} | more
    return show_list(USERS, request, site, principal, filters, problem=problem, **more)

"""Who may log in, and as what. Knows roles; knows no permission's meaning."""

from collections.abc import Callable
from typing import Annotated, Any

from fastapi import Depends, Response

from rlhf_pipeline.records import Role, User
from rlhf_pipeline.web.api.routing import api_router, documented
from rlhf_pipeline.web.auth import Principal
from rlhf_pipeline.web.dependencies import AnySite, needs
from rlhf_pipeline.web.etags import IfMatch, edited, etag_of_record
from rlhf_pipeline.web.idempotency import done_once
from rlhf_pipeline.web.permissions import Permission
from rlhf_pipeline.web.problems import Problem
from rlhf_pipeline.web.schemas import AddedUser, LoginLink, NewUser, Page, UserChange, UserOut
from rlhf_pipeline.web.site import Site

router = api_router("users")
READER = [Depends(needs(Permission.USERS_READ))]
Admin = Annotated[Principal, Depends(needs(Permission.USERS_WRITE))]


@router.get("/users", dependencies=READER)
def read_all(site: AnySite) -> Page[UserOut]:
    """Everybody, by e-mail address."""
    return Page(items=[user_out(user) for user in site.store.users.all()], next=None)


@router.get("/users/{user_id}", dependencies=READER)
def read(site: AnySite, response: Response, user_id: str) -> UserOut:
    """One user."""
    found = user_out(site.store.users.get(user_id))
    response.headers["ETag"] = etag_of_record(found)
    return found


def _person(site: Site, told: dict[str, Any]) -> dict[str, Any]:
    """E-mail and name stand in one table, and in no kept answer."""
    user = site.store.users.get(told["user_id"])
    return {"email": user.email, "name": user.name}


@router.post("/users", status_code=201)
@done_once(leaves_out=("email", "name"), fills_in=_person)
def add(site: AnySite, principal: Admin, response: Response, body: NewUser) -> AddedUser:
    """Somebody new, with a login link to hand them: nothing is ever sent by mail."""
    user = site.store.users.add(email=body.email, name=body.name, roles=body.roles, kind=body.kind, actor=principal.user_id)
    link, _ = site.auth.login_link(user.user_id, site.settings.web_url, actor=principal.user_id)
    known = user_out(user)
    response.headers["ETag"] = etag_of_record(known)
    return AddedUser(**known.model_dump(), login_link=link)


@router.patch("/users/{user_id}", responses=documented(412, 428))
def change(site: AnySite, principal: Admin, response: Response, user_id: str, body: UserChange, if_match: IfMatch = None) -> UserOut:
    """Name, roles, or whether they may log in at all; what is left out stays. If-Match is the ETag of the user as you read them."""
    check = unchanged(edited(if_match))
    changed = user_out(
        changed_user(site, principal.user_id, user_id, name=body.name, roles=body.roles, disabled=body.disabled, check=check)
    )
    response.headers["ETag"] = etag_of_record(changed)
    return changed


@router.post("/users/{user_id}:login-link", status_code=201)
@done_once()
def login_link(site: AnySite, principal: Admin, user_id: str) -> LoginLink:
    """An address that logs its first visitor in as this user, for 24 hours."""
    if site.store.users.get(user_id).disabled_at is not None:
        raise Problem(422, "This user is disabled. Enable them first.", kind="disabled")
    link, token = site.auth.login_link(user_id, site.settings.web_url, actor=principal.user_id)
    return LoginLink(login_link=link, expires_at=token.expires_at)


def changed_user(
    site: Site,
    actor: str,
    user_id: str,
    *,
    name: str | None = None,
    roles: list[Role] | None = None,
    disabled: bool | None = None,
    check: Callable[[User], None] | None = None,
) -> User:
    """The user after these changes, which hold from the next request on. Raises NotFound; ConfigurationError for the last admin."""
    try:
        return site.store.users.change(user_id, name=name, roles=roles, disabled=disabled, actor=actor, check=check)
    finally:
        site.auth.forget()


def unchanged(etag: str) -> Callable[[User], None]:
    """A check that a user is still what was read. It raises Problem 412."""

    def check(user: User) -> None:
        if etag != etag_of_record(user_out(user)):
            raise Problem(412, "Somebody changed this user since you read them. Read them again and change that.", kind="outdated_edit")

    return check


def user_out(user: User) -> UserOut:
    return UserOut.model_validate(user.model_dump())

"""Lists users."""

from rlhf_pipeline.api_types.accounts import UserOut
from rlhf_pipeline.api_types.base import Page
from rlhf_pipeline.errors import NotFound
from rlhf_pipeline.records import User
from rlhf_pipeline.web.pagination import cursor_problem, make_cursor, parse_cursor
from rlhf_pipeline.web.site import Site


def users(site: Site, *, cursor: str | None, limit: int) -> Page[UserOut]:
    """By e-mail address. A cursor is the last one's id: addresses stand in no log of addresses that
    were asked for.
    """
    place = parse_cursor(cursor, str)
    try:
        found = site.store.users.page(after=place[0] if place else None, limit=limit)
    except NotFound:
        raise cursor_problem() from None
    return Page(
        items=[user_out(user) for user in found],
        next=make_cursor(found[-1].user_id) if len(found) == limit else None,
    )


def user_out(user: User) -> UserOut:
    return UserOut.model_validate(user.model_dump())

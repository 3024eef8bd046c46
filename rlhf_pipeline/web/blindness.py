"""The blindness rule: users who may vote see others' votes on a comparison only after they have
judged it themselves.

Every route, page, file and stream asks here; `docs/api.md` ("Blind judging") states the rule for
users.
"""

from collections.abc import Iterable
from dataclasses import dataclass

from fastapi import Request

from rlhf_pipeline.permissions import Permission
from rlhf_pipeline.store.judgements import filter_judged
from rlhf_pipeline.web.auth import Principal
from rlhf_pipeline.web.dependencies import RequiredPermission
from rlhf_pipeline.web.problems import Problem
from rlhf_pipeline.web.site import Site


def blind_reader_id(principal: Principal) -> str | None:
    """User id of a blind reader; None for users who see all votes.

    The store takes it as `seen_by`: lists and counts for this reader contain only the votes that
    the store then returns.
    """
    return None if principal.sees_others_votes else principal.user_id


def filter_unjudged(site: Site, principal: Principal, comparison_ids: Iterable[str]) -> set[str]:
    """The comparisons whose votes and kind are hidden from the reader."""
    reader_id, ids = blind_reader_id(principal), set(comparison_ids)
    return set() if reader_id is None else ids - filter_judged(site.store.database, reader_id, ids)


def hides_answers(principal: Principal) -> bool:
    """Whether model names and known answers stay hidden: from everybody who may vote, admins
    included, before and after judging.
    """
    return principal.judges_blind


def refuse_blind(principal: Principal, what: str) -> None:
    """Raises Problem 403 for a blind reader of something that cannot be limited to the comparisons
    they have judged.
    """
    if blind_reader_id(principal) is not None:
        raise Problem(
            403,
            f"Your roles let you vote, and {what} would reveal votes on comparisons that you have "
            "not judged. Use an account without a role that votes, or ask an admin.",
            kind="blind",
        )


@dataclass(frozen=True)
class RequiredAllVotes(RequiredPermission):
    """Lets in users with the permission who see all votes."""

    what: str

    async def __call__(self, request: Request) -> Principal:
        """Raises Problem 401 and 403 as `RequiredPermission`, and 403, `blind`, for a blind
        reader.
        """
        principal = await super().__call__(request)
        refuse_blind(principal, self.what)
        return principal


def needs_all_votes(permission: Permission, what: str) -> RequiredAllVotes:
    """For `Depends`: the user who asks, if they have the permission and see all votes."""
    return RequiredAllVotes(permission, what)

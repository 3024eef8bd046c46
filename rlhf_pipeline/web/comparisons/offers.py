"""Offers comparisons to annotators, withdraws open judgements, and flags comparisons."""

from collections.abc import Sequence
from datetime import date
from typing import Literal

from pydantic import Field

from rlhf_pipeline.core.api_types.base import Answer, Id, RequestBody
from rlhf_pipeline.core.api_types.project import Offered, Withdrawn
from rlhf_pipeline.core.records import User
from rlhf_pipeline.reports.words import format_count
from rlhf_pipeline.watch.drift.cluster_history import find_cluster
from rlhf_pipeline.web.permissions import Permission, Principal, permissions_of
from rlhf_pipeline.web.problems import Problem
from rlhf_pipeline.web.rendering import names_for
from rlhf_pipeline.web.site import Site


class Offer(RequestBody):
    """Selects comparisons by id, by day, by error cluster or all without votes, and optionally one
    annotator.
    """

    ids: list[Id] | None = Field(default=None, max_length=10_000)
    day: date | None = None
    all_unvoted: bool = False
    cluster: Id | None = Field(
        default=None,
        description="Id of a cluster of prompts, as in `GET clusters`: its comparisons of the last "
        "day on which it was found.",
    )
    overlap: int | None = Field(
        default=None,
        ge=1,
        le=9,
        description="Number of people who judge each comparison; default as in the rules.",
    )
    priority: int = Field(
        default=0, ge=-1000, le=1000, description="Lower priorities are dealt first."
    )
    annotator_id: Id | None = Field(
        default=None,
        description="User id of the one annotator who is asked, before any other card; default "
        "any annotator.",
    )


class Flagging(RequestBody):
    """Takes comparisons out of use, or with a null flag back into use. Flags of an import stay."""

    ids: list[Id] = Field(min_length=1, max_length=10_000)
    flag: Literal["pii", "identity", "broken"] | None = Field(
        description="Contains personal data; mentions its model; is unreadable."
    )


class Flagged(Answer):
    n_comparisons: int = Field(description="Number of comparisons whose flag changed.")
    n_withdrawn: int = Field(description="Open judgements that were withdrawn.")


class Withdrawal(RequestBody):
    ids: list[Id] = Field(min_length=1, max_length=10_000)


def offer(site: Site, principal: Principal, body: Offer) -> Offered:
    """Offers comparisons.

    Raises Problem 422 unless exactly one of ids, day, cluster and all_unvoted is given, NotFound,
    UnknownComparison, and as `_ask_person`.
    """
    ways = [
        body.ids is not None,
        body.day is not None,
        body.cluster is not None,
        body.all_unvoted,
    ]
    if sum(ways) != 1:
        raise Problem(
            422,
            "Select comparisons by exactly one of ids, day, cluster and all_unvoted.",
            kind="invalid",
            errors=[("body.ids", "or day, or cluster, or all_unvoted")],
        )
    if body.ids is not None:
        ids = list(dict.fromkeys(body.ids))
    elif body.cluster is not None:
        _, cluster = find_cluster(site.files, body.cluster)
        ids = list(cluster.comparison_ids)
    else:
        ids = site.store.comparisons.find_offerable_ids(
            day=str(body.day) if body.day else None, unvoted_only=body.all_unvoted
        )
    if body.annotator_id is not None:
        n_new = _ask_person(site, principal.user_id, body.annotator_id, ids, body)
    else:
        overlap = body.overlap or site.terms().rules.overlap
        n_new = site.store.cards.offer(
            ids, overlap=overlap, priority=body.priority, actor=principal.user_id
        )
    return Offered(n_comparisons=len(ids), n_wanted=n_new)


def withdraw(site: Site, principal: Principal, comparison_ids: Sequence[str]) -> Withdrawn:
    """Withdraw open judgements; return how many."""
    return Withdrawn(n_withdrawn=site.store.cards.withdraw(comparison_ids, actor=principal.user_id))


def flag(site: Site, principal: Principal, body: Flagging) -> Flagged:
    """Flags comparisons and withdraws their open judgements, or removes the flag. Raises
    UnknownComparison.
    """
    n = site.store.comparisons.flag(body.ids, body.flag, actor=principal.user_id)
    withdrawn = 0 if body.flag is None else withdraw(site, principal, body.ids).n_withdrawn
    return Flagged(n_comparisons=n, n_withdrawn=withdrawn)


def may_be_asked(user: User) -> bool:
    """Whether the user can be asked to judge: people with a role that votes."""
    return (
        user.kind == "person"
        and user.disabled_at is None
        and Permission.VOTES_CAST in permissions_of(user.roles)
    )


def describe(site: Site, principal: Principal, done: Offered, annotator_id: str) -> str:
    """What an offer did, in words for its page."""
    if not done.n_wanted:
        return "No new judgements requested: the comparisons were offered before, or none match."
    judgements = format_count(done.n_wanted, "judgement")
    text = f"Requested {judgements} of {format_count(done.n_comparisons, 'comparison')}"
    if annotator_id:
        text += f" from {names_for(site, principal).get(annotator_id, annotator_id)}"
    return f"{text}."


def list_people(site: Site, principal: Principal) -> list[tuple[str, str]]:
    """Ids and names of the users who can be asked, for readers who may ask."""
    if not principal.may(Permission.COMPARISONS_OFFER):
        return []
    names = names_for(site, principal)
    user_ids = [user.user_id for user in site.store.users.all() if may_be_asked(user)]
    return sorted(
        ((who, names.get(who, who)) for who in user_ids), key=lambda person: person[1].casefold()
    )


def _ask_person(site: Site, actor: str, annotator_id: str, ids: Sequence[str], body: Offer) -> int:
    """Raises Problem 422 for a user who is dealt no cards and for an overlap, which one person
    cannot have; NotFound, UnknownComparison.
    """
    if body.overlap is not None:
        fault = "is how many people judge each, and annotator_id names one: leave one of them out"
        raise Problem(422, f"overlap {fault}.", kind="invalid", errors=[("body.overlap", fault)])
    user = site.store.users.get(annotator_id)
    if not may_be_asked(user):
        fault = (
            "is not a user who may vote here: give them a role that votes, or choose another user"
        )
        raise Problem(
            422,
            f"annotator_id {fault}.",
            kind="no_annotator",
            errors=[("body.annotator_id", fault)],
        )
    return site.store.cards.ask(annotator_id, ids, priority=body.priority, actor=actor)

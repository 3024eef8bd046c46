"""Pauses annotators and leaves out their votes, with the effect shown before, and undoes both."""

from typing import Annotated

from fastapi import APIRouter, Depends, Path, Query, Request, Response
from pydantic import Field

from rlhf_pipeline.core.api_types.base import Answer
from rlhf_pipeline.core.api_types.project import DecisionOut
from rlhf_pipeline.core.errors import StoreError
from rlhf_pipeline.core.records import Quarantine, TriggerDecision, User
from rlhf_pipeline.feedback.votes.teaching import Quarantines, find_active_quarantines
from rlhf_pipeline.improve.retraining import answers
from rlhf_pipeline.web.decisions.answers import Justification
from rlhf_pipeline.web.decisions.queries import describe
from rlhf_pipeline.web.forms import Form, attempt, validate
from rlhf_pipeline.web.permissions import Permission, Principal
from rlhf_pipeline.web.problems import Problem
from rlhf_pipeline.web.rendering import names_for, query_of, render, see_other
from rlhf_pipeline.web.routing import AnySite, api_router, needs, problem_responses
from rlhf_pipeline.web.site import Site

api, pages = api_router("quality"), APIRouter()
Trustee = Annotated[Principal, Depends(needs(Permission.ANNOTATORS_PAUSE))]
AnnotatorId = Annotated[str, Path(min_length=1, max_length=200)]
First = Annotated[int, Query(ge=1, le=2**62, description="The first vote that would be left out.")]


class LeavingOut(Answer):
    """What training loses if an annotator's votes are left out."""

    annotator_id: str
    from_seq: int = Field(description="The first vote that would be left out.")
    n_votes: int = Field(description="Their votes from there on that teach.")
    n_pairs: int = Field(description="Comparisons of these votes, whose pairs change or go.")
    share: float = Field(description="Of all votes of people that teach.")
    decision_id: int | None = Field(
        description="The decision that leaves their votes out now; null while they count."
    )


class NewLeavingOut(Justification):
    """Leaves out the votes of an annotator from a vote on."""

    from_seq: int = Field(default=1, ge=1, le=2**62, description="The first vote to leave out.")


class VotingPause(Justification):
    """Keeps a user from voting, or lets them vote again."""

    is_paused: bool


@api.get("/annotators/{annotator_id}/effect")
def read_effect(
    site: AnySite, _: Trustee, annotator_id: AnnotatorId, from_seq: First = 1
) -> LeavingOut:
    """What training loses if the votes of an annotator are left out."""
    return measure_effect(site, annotator_id, from_seq)


@api.post(
    "/annotators/{annotator_id}:leave-out", status_code=201, responses=problem_responses(404, 409)
)
def leave_out(
    site: AnySite, principal: Trustee, annotator_id: AnnotatorId, body: NewLeavingOut
) -> DecisionOut:
    """Leave out the votes of an annotator from a vote on: a decision, which the retraining sensor
    carries out. Their earlier votes stay.
    """
    if _find_decision(site, annotator_id) is not None:
        raise Problem(409, "Their votes are left out already.", kind="left_out")
    quarantine = Quarantine(annotator_ids=(annotator_id,), from_seq=body.from_seq)
    try:
        decision = site.store.decisions.fire_by_hand(
            body.reason,
            actor=principal.user_id,
            now=site.store.database.clock.now(),
            quarantine=quarantine,
        )
    except StoreError as refusal:
        if type(refusal) is not StoreError or refusal.__cause__ is not None:
            raise
        raise Problem(404, str(refusal), kind="not_found") from None
    return describe(site.store, decision)


@api.post(
    "/annotators/{annotator_id}:restore", status_code=201, responses=problem_responses(404, 409)
)
def restore(
    site: AnySite, principal: Trustee, annotator_id: AnnotatorId, body: Justification
) -> DecisionOut:
    """Let the votes of an annotator count again, and those of others whom the same decision left
    out.
    """
    decision = _find_decision(site, annotator_id)
    if decision is None:
        raise Problem(409, "Their votes are not left out.", kind="not_left_out")
    now = site.store.database.clock.now()
    lifted = site.store.decisions.answer(
        decision.stored_id,
        lambda fired, seq: answers.lift(
            fired, reason=body.reason, actor=principal.user_id, now=now, max_seq=seq
        ),
    )
    return describe(site.store, lifted)


@api.post("/users/{user_id}:pause", responses=problem_responses(404))
def pause(site: AnySite, principal: Trustee, user_id: AnnotatorId, body: VotingPause) -> User:
    """Keep a user from voting, or let them vote again. They can log in meanwhile."""
    try:
        return site.store.users.pause(
            user_id, is_paused=body.is_paused, reason=body.reason, actor=principal.user_id
        )
    finally:
        site.auth.forget()


@pages.get("/quality/trust")
def show_page(
    site: AnySite,
    request: Request,
    principal: Trustee,
    annotator_id: Annotated[str, Query(min_length=1, max_length=200)],
    from_seq: First = 1,
) -> Response:
    return _render_page(site, request, principal, annotator_id, from_seq)


@pages.post("/quality/trust")
def submit(site: AnySite, request: Request, principal: Trustee, form: Form) -> Response:
    """What the button of the form names: leave-out, restore, pause or resume."""
    annotator_id, action = form.text("annotator_id"), form.text("action")
    reason = form.text("reason").strip()
    from_seq = form.number("from_seq") or 1

    def act() -> object:
        if action == "leave-out":
            leaving = validate(NewLeavingOut, {"from_seq": from_seq, "reason": reason})
            return leave_out(site, principal, annotator_id, leaving)
        if action == "restore":
            return restore(
                site, principal, annotator_id, validate(Justification, {"reason": reason})
            )
        body = validate(VotingPause, {"is_paused": action == "pause", "reason": reason})
        return pause(site, principal, annotator_id, body)

    _, problem = attempt(act)
    if problem is not None:
        return _render_page(site, request, principal, annotator_id, from_seq, problem)
    return see_other(f"/quality/trust?{query_of({'annotator_id': annotator_id}).rstrip('&')}")


def measure_effect(site: Site, annotator_id: str, from_seq: int) -> LeavingOut:
    quarantines = Quarantines.from_decisions(site.store.decisions.fires())
    others = {who: seq for who, seq in quarantines.since.items() if who != annotator_id}
    n_votes, n_pairs = site.store.votes.count_teaching(annotator_id, from_seq, others)
    decision = _find_decision(site, annotator_id)
    return LeavingOut(
        annotator_id=annotator_id,
        from_seq=from_seq,
        n_votes=n_votes,
        n_pairs=n_pairs,
        share=n_votes / max(1, site.vote_counts().n_votes),
        decision_id=None if decision is None else decision.stored_id,
    )


def _find_decision(site: Site, annotator_id: str) -> TriggerDecision | None:
    """The decision that leaves out the annotator's votes now."""
    active = find_active_quarantines(site.store.decisions.fires())
    return next(
        (
            decision
            for decision in reversed(active)
            if decision.quarantine is not None and annotator_id in decision.quarantine.annotator_ids
        ),
        None,
    )


def _render_page(
    site: Site,
    request: Request,
    principal: Principal,
    annotator_id: str,
    from_seq: int,
    problem: Problem | None = None,
) -> Response:
    users = {user.user_id: user for user in site.store.users.all()}
    user = users.get(annotator_id)
    effect = measure_effect(site, annotator_id, from_seq)
    if user is None and not effect.n_votes and effect.decision_id is None:
        raise Problem(404, f"No annotator {annotator_id!r} in this project.", kind="not_found")
    return render(
        "quality/trust.html",
        request,
        site,
        principal,
        status=problem.status if problem else 200,
        problem=problem.detail if problem else None,
        annotator_id=annotator_id,
        user=user,
        user_name=names_for(site, principal).get(annotator_id, annotator_id),
        effect=effect,
        decision=_find_decision(site, annotator_id),
    )

"""Routes of decisions: read and explain them, answer those that wait, end a quarantine."""

from collections.abc import Callable
from typing import Annotated

from fastapi import APIRouter, Depends, Path, Request, Response

from rlhf_pipeline.core.api_types.base import Page
from rlhf_pipeline.core.api_types.filters import Filter
from rlhf_pipeline.core.api_types.project import DecisionOut
from rlhf_pipeline.core.errors import ConfigurationError, StoreError
from rlhf_pipeline.core.records import TriggerDecision
from rlhf_pipeline.improve.retraining import answers
from rlhf_pipeline.improve.retraining.messages import CAUSES
from rlhf_pipeline.reports.words import display_name, name_stream
from rlhf_pipeline.web.decisions import queries
from rlhf_pipeline.web.decisions.answers import DecisionDetail, Justification, NewAnswer
from rlhf_pipeline.web.forms import Fields, Form, attempt, validate
from rlhf_pipeline.web.lists import (
    ListPage,
    Paged,
    RowList,
    page_filter,
    render_list,
    send_csv,
    wants_csv,
)
from rlhf_pipeline.web.permissions import Permission, Principal
from rlhf_pipeline.web.problems import Problem
from rlhf_pipeline.web.rendering import names_for, render, see_other
from rlhf_pipeline.web.routing import AnySite, api_router, needs, problem_responses
from rlhf_pipeline.web.site import Site

api, pages = api_router("decisions"), APIRouter()
Reader = Annotated[Principal, Depends(needs(Permission.METRICS_READ))]
Decider = Annotated[Principal, Depends(needs(Permission.DECISIONS_ANSWER))]
Number = Annotated[int, Path(ge=1, le=10**9)]
Shown = Annotated[Filter, page_filter(Filter)]
DECISIONS = RowList(
    "Decisions", "/decisions", "decisions/page.html", DecisionOut, key="decision_id"
)


@api.get("/decisions")
def read_all(site: AnySite, _: Reader, filters: Paged) -> Page[DecisionOut]:
    """Decisions to retrain, to answer otherwise, or to hold, newest first."""
    return queries.page(site, cursor=filters.cursor, limit=filters.limit)


@api.get("/decisions/{decision_id}", responses=problem_responses(404))
def read(site: AnySite, _: Reader, decision_id: Number) -> DecisionDetail:
    """One decision with its conditions, the events that it saw, and the gate that it led to."""
    return queries.detail(site, decision_id)


@api.post("/decisions/{decision_id}:answer", status_code=201, responses=problem_responses(404, 409))
def answer(site: AnySite, principal: Decider, decision_id: Number, body: NewAnswer) -> DecisionOut:
    """Answer a decision that waits for a person. The answer is a decision of its own; the
    retraining sensor carries it out.
    """
    return _answer(site, principal, decision_id, body)


@api.post("/decisions/{decision_id}:lift", status_code=201, responses=problem_responses(404, 409))
def lift(
    site: AnySite, principal: Decider, decision_id: Number, body: Justification
) -> DecisionOut:
    """End the quarantine that a decision began: its votes count again."""
    return _lift(site, principal, decision_id, body)


@pages.get("/decisions")
def show_list(site: AnySite, request: Request, principal: Reader, filters: Shown) -> Response:
    if wants_csv(request):
        return send_csv(DECISIONS, filters, lambda part: read_all(site, principal, part))
    return render_list(
        DECISIONS,
        request,
        site,
        principal,
        ListPage(filters, read_all(site, principal, filters)),
        waiting=[
            queries.describe(site.store, decision) for decision in queries.find_waiting(site.store)
        ],
        names=names_for(site, principal),
    )


@pages.get("/decisions/{decision_id}")
def show_one(site: AnySite, request: Request, principal: Reader, decision_id: Number) -> Response:
    return _render_one(site, request, principal, decision_id)


@pages.post("/decisions/{decision_id}/answer")
def submit_answer(
    site: AnySite, request: Request, principal: Decider, decision_id: Number, form: Form
) -> Response:
    def store_answer() -> DecisionOut:
        body = validate(NewAnswer, _read_form(form, "answer"))
        return _answer(site, principal, decision_id, body)

    return _submit(site, request, principal, decision_id, store_answer)


@pages.post("/decisions/{decision_id}/lift")
def submit_lift(
    site: AnySite, request: Request, principal: Decider, decision_id: Number, form: Form
) -> Response:
    def store_lift() -> DecisionOut:
        return _lift(site, principal, decision_id, validate(Justification, _read_form(form)))

    return _submit(site, request, principal, decision_id, store_lift)


def _answer(site: Site, principal: Principal, decision_id: int, body: NewAnswer) -> DecisionOut:
    now, actor = site.store.database.clock.now(), principal.user_id
    return _store(
        site,
        decision_id,
        lambda decision, seq: answers.answer(
            decision, body.answer, reason=body.reason, actor=actor, now=now, max_seq=seq
        ),
    )


def _lift(site: Site, principal: Principal, decision_id: int, body: Justification) -> DecisionOut:
    now, actor = site.store.database.clock.now(), principal.user_id
    return _store(
        site,
        decision_id,
        lambda fired, seq: answers.lift(
            fired, reason=body.reason, actor=actor, now=now, max_seq=seq
        ),
    )


def _store(
    site: Site, decision_id: int, rule: Callable[[TriggerDecision, int], TriggerDecision]
) -> DecisionOut:
    """Problem 409 where the decision waits for no such answer, or has one."""
    try:
        return queries.describe(site.store, site.store.decisions.answer(decision_id, rule))
    except (ConfigurationError, StoreError) as refusal:
        is_refusal = isinstance(refusal, ConfigurationError) or type(refusal) is StoreError
        if not is_refusal or refusal.__cause__ is not None:
            raise
        raise Problem(409, str(refusal), kind="decision_state") from None


def _read_form(form: Fields, *names: str) -> dict[str, object]:
    """Raises Problem 422 unless the question whether it is meant was answered."""
    if not form.has("is_confirmed"):
        raise Problem(
            422,
            "Nothing was done: tick the box that confirms it, then send the form again.",
            kind="invalid",
            errors=[("is_confirmed", "is not ticked")],
        )
    return {name: form.text(name).strip() for name in (*names, "reason")}


def _submit(
    site: Site,
    request: Request,
    principal: Principal,
    decision_id: int,
    act: Callable[[], DecisionOut],
) -> Response:
    decision, problem = attempt(act)
    if decision is not None:
        return see_other(f"/decisions/{decision.decision_id}")
    return _render_one(site, request, principal, decision_id, problem)


def _render_one(
    site: Site,
    request: Request,
    principal: Principal,
    decision_id: int,
    problem: Problem | None = None,
) -> Response:
    decision = queries.detail(site, decision_id)
    careless = next((cause for cause in decision.causes if cause.name == "carelessness"), None)
    return render(
        "decisions/decision.html",
        request,
        site,
        principal,
        status=problem.status if problem else 200,
        decision=decision,
        figures={row["annotator_id"]: row for row in careless.evidence.get("people", ())}
        if careless and decision.remedy == "quarantine"
        else {},
        problem=problem.detail if problem else None,
        names=names_for(site, principal),
        cause_words=CAUSES,
        display=display_name,
        name_stream=name_stream,
        dagster=site.settings.dagster_ui.rstrip("/"),
    )

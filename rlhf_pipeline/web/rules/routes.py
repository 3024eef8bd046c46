"""Routes of the rules of annotation: read and replace them; the form with a field for each."""

from typing import Annotated, Any

from fastapi import APIRouter, Depends, Request, Response
from pydantic import ConfigDict, Field

from rlhf_pipeline.core.api_types.base import Answer
from rlhf_pipeline.core.errors import OutdatedEdit
from rlhf_pipeline.core.records import AnnotationRules
from rlhf_pipeline.web.forms import Fields, Form, attempt, validate
from rlhf_pipeline.web.permissions import Permission, Principal
from rlhf_pipeline.web.problems import Problem
from rlhf_pipeline.web.rendering import render
from rlhf_pipeline.web.routing import (
    AnySite,
    IfMatch,
    api_router,
    etag_of,
    needs,
    problem_responses,
    require_version,
)
from rlhf_pipeline.web.site import Site

api = api_router("guidelines", "rules")
pages = APIRouter()
RulesReader = Annotated[Principal, Depends(needs(Permission.RULES_READ))]
RulesEditor = Annotated[Principal, Depends(needs(Permission.RULES_WRITE))]
LABELS = {
    "overlap": "People per comparison",
    "agreement_votes": "Judgements for agreement",
    "repeat_share": "Share of repeats",
    "repeat_after": "Votes before a repeat",
    "gold_share": "Share with a known answer",
    "rating_share": "Share of ratings",
    "lease_minutes": "Lease of a card in minutes",
    "prefetch": "Cards dealt ahead",
    "max_votes_per_day": "Maximum votes per person and day",
    "undo_seconds": "Seconds to undo a vote",
    "requires_reason": "A reason is required",
    "shows_length": "Show the length of completions",
    "dimensions": "Rubric",
}
MORE_HELP = {
    "dimensions": "; separated by commas",
    "repeat_share": "; 0.08 is 8%",
    "gold_share": "; 0.05 is 5%",
    "rating_share": "; 0.1 is 10%, 0 is none",
}


class RulesRead(AnnotationRules):
    """The rules of annotation as returned."""

    model_config = ConfigDict(frozen=True, extra="ignore")

    seed: int | None = Field(  # type: ignore[assignment]
        description="Null for annotators, because it reveals hidden cards."
    )


class RulesOut(Answer):
    version: int
    rules: RulesRead


@api.get("/rules")
def read_rules(site: AnySite, principal: RulesReader, response: Response) -> RulesOut:
    """How cards are dealt and judged. The seed is null for annotators, because it
    reveals hidden cards.
    """
    version, rules = site.store.rules.latest()
    response.headers["ETag"] = etag_of(version)
    return _build_rules(principal, version, rules)


@api.put("/rules", responses=problem_responses(412, 428))
def put_rules(
    site: AnySite,
    principal: RulesEditor,
    response: Response,
    body: AnnotationRules,
    if_match: IfMatch = None,
) -> RulesOut:
    """Replace the rules for cards dealt from now on. Fields left out get their default, except seed
    and agreement_votes, which stay unchanged."""
    current_rules = site.store.rules.latest()[1]
    unset_fields = {"seed", "agreement_votes"} - body.model_fields_set
    rules = body.model_copy(update=current_rules.model_dump(include=unset_fields))
    version = site.store.rules.put(rules, after=require_version(if_match), actor=principal.user_id)
    site.terms.forget()
    response.headers["ETag"] = etag_of(version)
    return _build_rules(principal, version, rules)


def _build_rules(principal: Principal, version: int, rules: AnnotationRules) -> RulesOut:
    hidden = {"seed": None} if principal.is_blind else {}
    return RulesOut(version=version, rules=RulesRead.model_validate(rules.model_dump() | hidden))


@pages.get("/rules")
def show_page(site: AnySite, request: Request, principal: RulesReader) -> Response:
    return _render_page(site, request, principal)


@pages.post("/rules")
def submit_form(site: AnySite, request: Request, principal: RulesEditor, form: Form) -> Response:
    version, problem = attempt(lambda: _store_rules(site, principal, form), OutdatedEdit)
    site.terms.forget()
    if problem is not None:
        return _render_page(site, request, principal, problem=problem, form=form)
    return _render_page(
        site,
        request,
        principal,
        notice=f"Saved as version {version}. It applies to cards dealt from now on.",
    )


def _store_rules(site: Site, principal: Principal, form: Fields) -> int:
    version = form.number("version") or 0
    current_rules = site.store.rules.latest()[1]
    values: dict[str, object] = {"seed": current_rules.seed}
    for name, label in LABELS.items():
        text = form.text(name).strip()
        if isinstance(getattr(current_rules, name), bool):
            values[name] = form.has(name)
        elif name == "dimensions":
            values[name] = [part.strip() for part in text.split(",") if part.strip()]
        elif text or name == "max_votes_per_day":
            values[name] = text or None
        else:
            empty = [(name, "is empty; enter a number")]
            raise Problem(422, f"{label} is empty. Enter a number.", kind="invalid", errors=empty)
    return site.store.rules.put(
        validate(AnnotationRules, values), after=version, actor=principal.user_id
    )


def _render_page(
    site: Site,
    request: Request,
    principal: Principal,
    *,
    notice: str | None = None,
    problem: Problem | None = None,
    form: Fields | None = None,
) -> Response:
    version, rules = site.store.rules.latest()
    wrong = dict(problem.errors) if problem else {}
    return render(
        "rules/page.html",
        request,
        site,
        principal,
        status=problem.status if problem else 200,
        notice=notice,
        version=version,
        labels=LABELS,
        help={
            name: f"{AnnotationRules.model_fields[name].description}{MORE_HELP.get(name, '')}."
            for name in LABELS
        },
        values={name: _show_value(name, getattr(rules, name), form) for name in LABELS},
        wrong={name.partition(".")[0]: what for name, what in wrong.items()},
        may_write=principal.may(Permission.RULES_WRITE),
        problem=problem.detail if problem else None,
    )


def _show_value(name: str, value: Any, form: Fields | None) -> bool | str:
    """A rule as its field shows it: as the form said, or as it is stored."""
    if isinstance(value, bool):
        return form.has(name) if form else value
    if form is not None:
        return form.text(name)
    if isinstance(value, tuple):
        return ", ".join(value)
    return "" if value is None else f"{value:g}"

"""The rules of annotation as a form, a field for each and its meaning beside it. Knows fields; the
rules say themselves what they mean.
"""

from dataclasses import dataclass
from typing import Annotated, Any

from fastapi import APIRouter, Depends, Request, Response

from rlhf_pipeline.errors import OutdatedEdit
from rlhf_pipeline.permissions import Permission
from rlhf_pipeline.records import AnnotationRules
from rlhf_pipeline.web.auth import Principal
from rlhf_pipeline.web.dependencies import AnySite, needs
from rlhf_pipeline.web.pages.forms import Fields, Form, attempt, validate
from rlhf_pipeline.web.pages.rendering import render
from rlhf_pipeline.web.problems import Problem
from rlhf_pipeline.web.site import Site

router = APIRouter()
Reader = Annotated[Principal, Depends(needs(Permission.RULES_READ))]
Writer = Annotated[Principal, Depends(needs(Permission.RULES_WRITE))]
LABELS = {
    "overlap": "People per comparison",
    "agreement_votes": "Judgements for agreement",
    "repeat_share": "Share of repeats",
    "repeat_after": "Votes before a repeat",
    "gold_share": "Share with a known answer",
    "lease_minutes": "Minutes a card is one's own",
    "prefetch": "Cards dealt ahead",
    "max_votes_per_day": "Most votes per person and day",
    "undo_seconds": "Seconds to take a vote back",
    "requires_reason": "A reason is required",
    "shows_length": "Show the length of completions",
    "dimensions": "Rubric",
}
MORE_HELP = {
    "dimensions": "; separated by commas",
    "repeat_share": "; 0.08 is 8 %",
    "gold_share": "; 0.05 is 5 %",
}
# drawn once; it tells where the hidden cards are, and who may read rules may vote
HIDDEN = {"seed"}


@dataclass(frozen=True)
class Field:
    """One rule as the form shows it."""

    name: str
    label: str
    help: str
    kind: str
    value: Any
    inputmode: str
    error: str | None


@router.get("/rules")
def read(site: AnySite, request: Request, principal: Reader) -> Response:
    return _render_page(site, request, principal)


@router.post("/rules")
def put(site: AnySite, request: Request, principal: Writer, form: Form) -> Response:
    version, problem = attempt(lambda: _store_rules(site, principal, form), OutdatedEdit)
    site.terms.forget()
    if problem is not None:
        return _render_page(site, request, principal, problem=problem, form=form)
    return _render_page(
        site,
        request,
        principal,
        told=f"Saved as version {version}. It holds for cards dealt from now on.",
    )


def _store_rules(site: Site, principal: Principal, form: Fields) -> int:
    version = form.number("version") or 0
    known = site.store.rules.latest()[1]
    values: dict[str, object] = {"seed": known.seed}
    for name, label in LABELS.items():
        said = form.text(name).strip()
        if _field_kind(name) == "bool":
            values[name] = form.has(name)
        elif name == "dimensions":
            values[name] = [one.strip() for one in said.split(",") if one.strip()]
        elif said:
            values[name] = said
        elif name == "max_votes_per_day":
            values[name] = None
        else:
            raise Problem(
                422,
                f"{label} is empty. Write a number.",
                kind="invalid",
                errors=[(name, "is empty; write a number")],
            )
    return site.store.rules.put(
        validate(AnnotationRules, values), after=version, actor=principal.user_id
    )


def _render_page(
    site: Site,
    request: Request,
    principal: Principal,
    *,
    told: str | None = None,
    problem: Problem | None = None,
    form: Fields | None = None,
) -> Response:
    version, rules = site.store.rules.latest()
    wrong = dict(problem.errors) if problem else {}
    if any(name not in LABELS for name in wrong):
        wrong = {name.partition(".")[0]: what for name, what in wrong.items()}
    return render(
        "rules.html",
        request,
        site,
        principal,
        status=problem.status if problem else 200,
        told=told,
        version=version,
        fields=[_build_field(name, rules, form, wrong.get(name)) for name in LABELS],
        may_write=principal.may(Permission.RULES_WRITE),
        problem=problem.detail if problem else None,
    )


def _build_field(
    name: str, rules: AnnotationRules, form: Fields | None, error: str | None
) -> Field:
    kind = _field_kind(name)
    value: Any = getattr(rules, name)
    if form is not None:
        value = form.has(name) if kind == "bool" else form.text(name)
    elif name == "dimensions":
        value = ", ".join(value)
    elif kind != "bool":
        value = "" if value is None else f"{value:g}"
    said = f"{AnnotationRules.model_fields[name].description}{MORE_HELP.get(name, '')}."
    return Field(
        name,
        LABELS[name],
        said[0].upper() + said[1:],
        kind,
        value,
        "text" if name == "dimensions" else "decimal",
        error,
    )


def _field_kind(name: str) -> str:
    return "bool" if AnnotationRules.model_fields[name].annotation is bool else "text"

"""Routes of evolution: versions as a list, a chart and a page; the page of an evaluation."""

import base64
import hashlib
import re
from dataclasses import replace
from typing import Annotated

from fastapi import APIRouter, Depends, Path, Query, Request, Response

from rlhf_pipeline.core.api_types.base import Page
from rlhf_pipeline.core.errors import ModelHashMismatch, ModelNotFound, ModelRefused
from rlhf_pipeline.core.records import Promotion
from rlhf_pipeline.reports.chart import Chart
from rlhf_pipeline.reports.evolution import chart_evolution
from rlhf_pipeline.reports.words import name_models
from rlhf_pipeline.web.evolution import queries
from rlhf_pipeline.web.evolution.answers import (
    EvolutionOut,
    NewPromotion,
    TrainingOut,
    VersionFilter,
    VersionLabel,
    VersionOut,
)
from rlhf_pipeline.web.evolution.training import describe_training, find_version
from rlhf_pipeline.web.forms import Form, attempt, validate
from rlhf_pipeline.web.lists import (
    FilterField,
    ListPage,
    RowList,
    page_filter,
    render_list,
    send_csv,
    wants_csv,
)
from rlhf_pipeline.web.permissions import Permission, Principal
from rlhf_pipeline.web.problems import Problem
from rlhf_pipeline.web.rendering import names_for, render, see_other
from rlhf_pipeline.web.routing import AnySite, answer_chart, api_router, needs, problem_responses
from rlhf_pipeline.web.site import Site

api, pages = api_router("evolution"), APIRouter()
Reader = Annotated[Principal, Depends(needs(Permission.METRICS_READ))]
Approver = Annotated[Principal, Depends(needs(Permission.MODELS_PROMOTE))]
ClusterReader = Annotated[Principal, Depends(needs(Permission.VOTES_READ))]
STYLE = re.compile(rb"<style>(.*?)</style>", re.DOTALL)
ORIGINS = {
    "vote": "labelled by votes",
    "relabelled": "relabelled by the reward model, because taste changed since the vote",
    "hard_negative": "hard negatives of the reward model",
    "dataset": "of a curated data set",
}


Chosen = Annotated[VersionLabel, Query()]
ShownVersions = Annotated[VersionFilter, page_filter(VersionFilter)]
VERSIONS = RowList("Versions", "/evolution", "evolution/page.html", VersionOut, key="label")
KINDS = [
    FilterField("kind", "Kind", choices={"policy": "policies", "reward_model": "reward models"})
]
MANY = 2  # evaluated versions from which a chart says more than their rows


@api.get("/evolution")
def read(site: AnySite, _: Reader) -> EvolutionOut:
    """Policy versions with the gate's decision, its reasons and the evaluation, what they were
    trained on and which decision started them; reward models with accuracy, noise ceiling and the
    reason of their promotion or refusal. The newest first.
    """
    return queries.read_evolution(site)


@api.get("/charts/evolution", response_model=Chart)
def read_chart(site: AnySite, _: Reader) -> Response:
    """Win rate, correct answers, KL and length of each evaluated policy version, with intervals."""
    evaluations, champion = queries.read_evaluations(site)
    return answer_chart(chart_evolution(evaluations, champion, "/evolution#policy-{}".format))


@api.post("/evolution:promote", responses=problem_responses(404, 409))
def promote(site: AnySite, principal: Approver, body: NewPromotion) -> Promotion:
    """Make a version the champion, which serves from then on; an earlier one rolls back. A refused
    one requires `overrides`. The promotion, its user and the reason are in the audit chain.
    """
    try:
        version, _ = site.champions.promote_by_hand(
            body.model, reason=body.reason, actor=principal.user_id, is_forced=body.overrides
        )
    except ModelNotFound as cause:
        raise Problem(404, str(cause), kind="not_found") from None
    except (ModelRefused, ModelHashMismatch) as cause:
        raise Problem(409, str(cause), kind="not_promoted") from None
    champion = site.store.promotions.champion(version.name)
    assert champion is not None  # the one just promoted
    return champion


@pages.get("/evolution")
def show_page(
    site: AnySite, request: Request, principal: Reader, filters: ShownVersions
) -> Response:
    return _render_versions(site, request, principal, filters)


@pages.post("/evolution/promote")
def submit_promotion(site: AnySite, request: Request, principal: Approver, form: Form) -> Response:
    def act() -> Promotion:
        values: dict[str, object] = {name: form.text(name).strip() for name in ("model", "reason")}
        body = validate(NewPromotion, values | {"overrides": form.has("overrides")})
        return promote(site, principal, body)

    promotion, problem = attempt(act)
    if promotion is None:
        opened = form.text("model")
        return _render_versions(site, request, principal, VersionFilter(), problem, opened)
    return see_other(
        "/evolution", notice=f"{name_models(promotion.label, is_first=True)} serves now."
    )


def _render_versions(
    site: Site,
    request: Request,
    principal: Principal,
    filters: VersionFilter,
    problem: Problem | None = None,
    opened: str = "",
) -> Response:
    evolution = queries.read_evolution(site)
    page = Page[VersionOut](items=queries.filter_versions(evolution, filters), next=None)
    if wants_csv(request):
        return send_csv(VERSIONS, filters, lambda _: page)
    policies, reward_models = evolution.policies, evolution.reward_models
    fields = KINDS if policies or reward_models else ()
    return render_list(
        replace(VERSIONS, title=queries.write_headline(evolution)),
        request,
        site,
        principal,
        ListPage(filters, page, fields, problem=problem, opened=opened),
        policy=next((version for version in policies if version.state == "champion"), None),
        model=next((version for version in reward_models if version.state == "champion"), None),
        newest=next(iter(policies), None),
        is_charted=sum(bool(version.gate and version.gate.evaluation) for version in policies)
        >= MANY,
        origins=ORIGINS,
        names=names_for(site, principal),
    )


@api.get("/evolution/training", responses=problem_responses(404))
def read_learnt(site: AnySite, _: ClusterReader, model: Chosen) -> TrainingOut:
    """The clusters of errors that a version learnt from, and the share of their prompts that was
    predicted right before and since.
    """
    return describe_training(site, find_version(site, model))


@pages.get("/evolution/training")
def show_learnt(
    site: AnySite, request: Request, principal: ClusterReader, model: Chosen
) -> Response:
    learnt = describe_training(site, find_version(site, model))
    title = f"What {name_models(model)} learnt from"
    return render(
        "evolution/training.html",
        request,
        site,
        principal,
        title=title,
        learnt=learnt,
        origins=ORIGINS,
    )


@pages.get("/evolution/{version}/report")
def show_report(
    site: AnySite, _: Reader, version: Annotated[int, Path(ge=1, lt=2**31)]
) -> Response:
    """The evaluation of a candidate as the page that its stage wrote, with a way back."""
    label = queries.label_of(site, version)
    page = site.files.read_page("evaluation", label)
    if page is None:
        raise Problem(
            404,
            f"There is no evaluation page of {label}. The stage evaluation writes one for each "
            "candidate; /evolution shows which versions have one.",
            kind="not_found",
        )
    back = f'<header>\n<nav><a href="/evolution#policy-{version}">Versions</a></nav>'
    return Response(
        page.replace(b"<header>", back.encode(), 1),
        media_type="text/html; charset=utf-8",
        headers={"content-security-policy": _allow_style(page)},
    )


def _allow_style(page: bytes) -> str:
    """A policy for a page that stands alone: its own style, and nothing else."""
    digests = [hashlib.sha256(style).digest() for style in STYLE.findall(page)]
    hashes = " ".join(f"'sha256-{base64.b64encode(digest).decode()}'" for digest in digests)
    return (
        f"default-src 'none'; style-src 'self' {hashes}; base-uri 'none'; "
        "form-action 'none'; frame-ancestors 'none'"
    )

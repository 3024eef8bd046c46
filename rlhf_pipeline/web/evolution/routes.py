"""Routes of evolution: versions as a list, a chart and a page; the page of an evaluation."""

import base64
import hashlib
import re
from dataclasses import replace
from typing import Annotated

from fastapi import APIRouter, Depends, Path, Query, Request, Response

from rlhf_pipeline.core.api_types.base import Page
from rlhf_pipeline.core.errors import ModelNotFound, ReleaseConflict
from rlhf_pipeline.core.releases import Deployment, find_archived
from rlhf_pipeline.improve.lineage import ORIGINS
from rlhf_pipeline.improve.releases import Releases
from rlhf_pipeline.reports.chart import Chart
from rlhf_pipeline.reports.evolution import chart_evolution
from rlhf_pipeline.reports.model_card import render_model_card
from rlhf_pipeline.reports.words import name_models
from rlhf_pipeline.web.evolution import queries
from rlhf_pipeline.web.evolution.answers import (
    EvolutionOut,
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
from rlhf_pipeline.web.releases.routes import NewDeployment, deploy
from rlhf_pipeline.web.rendering import names_for, render, see_other
from rlhf_pipeline.web.routing import AnySite, answer_chart, api_router, needs, problem_responses
from rlhf_pipeline.web.site import Site

api, pages = api_router("evolution"), APIRouter()
Reader = Annotated[Principal, Depends(needs(Permission.METRICS_READ))]
Approver = Annotated[Principal, Depends(needs(Permission.MODELS_PROMOTE))]
ClusterReader = Annotated[Principal, Depends(needs(Permission.VOTES_READ))]
VersionNumber = Annotated[int, Path(ge=1, lt=2**31)]
STYLE = re.compile(rb"<style>(.*?)</style>", re.DOTALL)


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


@pages.get("/evolution")
def show_page(
    site: AnySite, request: Request, principal: Reader, filters: ShownVersions
) -> Response:
    return _render_versions(site, request, principal, filters)


@pages.post("/evolution/promote")
def submit_promotion(site: AnySite, request: Request, principal: Approver, form: Form) -> Response:
    def act() -> Deployment:
        fields = {"reason": form.text("reason").strip(), "overrides": form.has("overrides")}
        return deploy(site, principal, label, validate(NewDeployment, fields))

    label = form.text("model").strip()
    deployment, problem = attempt(act, ReleaseConflict)
    if deployment is None:
        return _render_versions(site, request, principal, VersionFilter(), problem, label)
    does = "serves now" if deployment.promotion else "waits for another approver"
    return see_other("/evolution", notice=f"{name_models(label, is_first=True)} {does}.")


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
        asking=evolution.asking,
        is_charted=sum(bool(version.gate and version.gate.evaluation) for version in policies)
        >= MANY,
        origins=ORIGINS,
        names=names_for(site, principal),
        archived={
            f"{name}@{version}"
            for kind in ("policy", "reward_model")
            for name in [queries.name_of(site, kind)]
            for version in find_archived(site.store.release_acts.all(name))
        },
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
def show_report(site: AnySite, _: Reader, version: VersionNumber) -> Response:
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
    return _send_report(page, version)


@pages.get("/evolution/{version}/card")
def show_card(site: AnySite, _: Reader, version: VersionNumber) -> Response:
    """The model card of a version as a page to print, with a way back."""
    try:
        card = Releases(site.champions, site.settings).describe(queries.label_of(site, version))
    except ModelNotFound as cause:
        raise Problem(404, str(cause), kind="not_found") from None
    return _send_report(render_model_card(card).encode(), version)


def _send_report(page: bytes, version: int) -> Response:
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

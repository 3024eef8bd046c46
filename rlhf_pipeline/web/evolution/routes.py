"""Routes of evolution: versions as a list, a chart and a page; the page of an evaluation."""

import base64
import hashlib
import re
from typing import Annotated

from fastapi import APIRouter, Depends, Path, Query, Request, Response

from rlhf_pipeline.api_types.base import Page
from rlhf_pipeline.api_types.evolution import EvolutionOut, LearntPair, TrainingOut
from rlhf_pipeline.api_types.filters import LearntPairFilter, ModelFilter, VersionLabel
from rlhf_pipeline.permissions import Permission
from rlhf_pipeline.reports.chart import Chart
from rlhf_pipeline.reports.evaluation_page import judge_win_rate
from rlhf_pipeline.reports.evolution import chart_evolution
from rlhf_pipeline.web.auth import Principal
from rlhf_pipeline.web.charts import answer_chart
from rlhf_pipeline.web.dependencies import AnySite, needs
from rlhf_pipeline.web.evolution import queries
from rlhf_pipeline.web.evolution.filters import list_models, select_versions
from rlhf_pipeline.web.evolution.pairs import list_pairs
from rlhf_pipeline.web.evolution.training import describe_training, find_version
from rlhf_pipeline.web.problems import Problem
from rlhf_pipeline.web.rendering import query_of, render
from rlhf_pipeline.web.routing import api_router, problem_responses

api, pages = api_router("evolution"), APIRouter()
Reader = Annotated[Principal, Depends(needs(Permission.METRICS_READ))]
ClusterReader = Annotated[Principal, Depends(needs(Permission.VOTES_READ))]
NONE_CHOSEN = "No evaluated policy version matches the filters."
STYLE = re.compile(rb"<style>(.*?)</style>", re.DOTALL)
ORIGINS = {
    "vote": "labelled by votes",
    "relabelled": "relabelled by the reward model, because taste changed since the vote",
    "hard_negative": "hard negatives of the reward model",
}


Chosen = Annotated[ModelFilter, Query()]
Asked = Annotated[LearntPairFilter, Query()]


@api.get("/evolution")
def read(site: AnySite, _: Reader, chosen: Chosen) -> EvolutionOut:
    """Policy versions with the gate's decision, its reasons and the evaluation, what they were
    trained on and which decision started them; reward models with accuracy, noise ceiling and the
    reason of their promotion or refusal. The newest first. `model` is a model by name, such as
    demo.policy, or one version, such as demo.policy@3; `since` and `until` compare the day of each
    version.
    """
    return select_versions(queries.read_evolution(site), chosen)


@api.get("/charts/evolution", response_model=Chart)
def read_chart(site: AnySite, _: Reader, chosen: Chosen) -> Response:
    """Win rate, correct answers, KL and length of each evaluated policy version, with intervals;
    `since`, `until` and `model` choose versions as in `GET evolution`.
    """
    evaluations, champion = queries.read_evaluations(site, chosen)
    query = query_of(chosen.chosen)

    def link(version: int) -> str:
        return f"/evolution{'?' if query else ''}{query.rstrip('&')}#policy-{version}"

    is_filtered = any(chosen.chosen.values())
    reason = {"no_versions": NONE_CHOSEN} if is_filtered else {}
    return answer_chart(chart_evolution(evaluations, champion, link, **reason))


@pages.get("/evolution")
def show_page(site: AnySite, request: Request, principal: Reader, chosen: Chosen) -> Response:
    whole = queries.read_evolution(site)
    return render(
        "evolution/page.html",
        request,
        site,
        principal,
        evolution=select_versions(whole, chosen),
        filters=chosen.chosen,
        models=list_models(whole),
        origins=ORIGINS,
        judge=judge_win_rate,
    )


@api.get("/evolution/training", responses=problem_responses(404))
def read_learnt(
    site: AnySite, _: ClusterReader, model: Annotated[VersionLabel, Query()]
) -> TrainingOut:
    """The clusters of errors that a version learnt from, and the share of their prompts that was
    predicted right before and since.
    """
    return describe_training(site, find_version(site, model))


@api.get("/evolution/pairs", responses=problem_responses(404))
def read_pairs(site: AnySite, _: ClusterReader, asked: Asked) -> Page[LearntPair]:
    """The pairs of the retraining set that a policy was trained on, in its order. Empty for a
    reward model, and if the set is unknown or not kept any more.
    """
    return list_pairs(site, find_version(site, asked.model), asked)


@pages.get("/evolution/training")
def show_learnt(
    site: AnySite, request: Request, principal: ClusterReader, asked: Asked
) -> Response:
    version = find_version(site, asked.model)
    return render(
        "evolution/training.html",
        request,
        site,
        principal,
        learnt=describe_training(site, version),
        page=list_pairs(site, version, asked),
        query=query_of(asked.chosen),
        origins=ORIGINS,
    )


@pages.get("/evolution/{version}/report")
def show_report(
    site: AnySite, _: Reader, version: Annotated[int, Path(ge=1, lt=2**31)]
) -> Response:
    """The evaluation of a candidate as the page that its stage wrote, with a way back."""
    label = f"{queries.name_of(site, 'policy')}@{version}"
    page = site.files.read_evaluation_page(label)
    if page is None:
        raise Problem(
            404,
            f"There is no evaluation page of {label}. The stage evaluation writes one for each "
            "candidate; /evolution shows which versions have one.",
            kind="not_found",
        )
    back = f'<header>\n<nav><a href="/evolution#policy-{version}">Evolution</a></nav>'
    return Response(
        page.replace(b"<header>", back.encode(), 1),
        media_type="text/html; charset=utf-8",
        headers={"content-security-policy": _allow_style(page)},
    )


def _allow_style(page: bytes) -> str:
    """A policy for a page that stands alone: its own style, and nothing else."""
    digests = [hashlib.sha256(style).digest() for style in STYLE.findall(page)]
    hashes = " ".join(f"'sha256-{base64.b64encode(one).decode()}'" for one in digests)
    return (
        f"default-src 'none'; style-src 'self' {hashes}; base-uri 'none'; "
        "form-action 'none'; frame-ancestors 'none'"
    )

"""Routes of experiments: start, read, change and end them, and deploy a treatment."""

from collections.abc import Callable
from typing import Annotated, get_args

from fastapi import APIRouter, Depends, Path, Query, Request, Response

from rlhf_pipeline.core.api_types.base import Page
from rlhf_pipeline.core.errors import ExperimentConflict, ModelError, ReleaseConflict
from rlhf_pipeline.core.experiments import (
    RAMP,
    Experiment,
    ExperimentChange,
    ExperimentMetric,
    ExperimentReport,
    NewExperiment,
)
from rlhf_pipeline.core.releases import Deployment, ReleaseAct
from rlhf_pipeline.improve.experiments import Analysis, Experiments
from rlhf_pipeline.reports.chart import Chart
from rlhf_pipeline.reports.experiments import chart_experiment
from rlhf_pipeline.web.decisions.answers import Justification
from rlhf_pipeline.web.forms import Form, attempt, validate
from rlhf_pipeline.web.permissions import Permission, Principal
from rlhf_pipeline.web.problems import Problem
from rlhf_pipeline.web.releases.routes import answer_refusals, open_releases
from rlhf_pipeline.web.rendering import names_for, render, see_other
from rlhf_pipeline.web.routing import (
    AnySite,
    answer_chart,
    api_router,
    needs,
    problem_responses,
)
from rlhf_pipeline.web.site import Site

models = api_router("models", prefix="/api/models/ab-test")
api, pages = api_router("charts"), APIRouter()
Reader = Annotated[Principal, Depends(needs(Permission.METRICS_READ))]
Approver = Annotated[Principal, Depends(needs(Permission.MODELS_PROMOTE))]
Number = Annotated[int, Path(ge=1, le=10**9)]


def open_experiments(site: Site) -> Experiments:
    return Experiments(open_releases(site))


@models.post("", responses=problem_responses(404, 409))
def start(site: AnySite, principal: Approver, body: NewExperiment) -> Experiment:
    """Let a second version answer a share of the chats; with `status` draft, only prepare it."""
    return answer_refusals(lambda: open_experiments(site).create(body, actor=principal.user_id))


@models.get("")
def read_experiments(site: AnySite, _: Reader) -> Page[Experiment]:
    """Experiments, the newest first; those that ended have their results."""
    open_experiments(site).refresh()
    return Page(items=tuple(site.store.experiments.all()), next=None)


@models.get("/{experiment_id}", responses=problem_responses(404))
def read(site: AnySite, _: Reader, experiment_id: Number) -> ExperimentReport:
    """An experiment with its present results. Looking at them, however often, changes nothing."""
    experiments = open_experiments(site)
    experiments.refresh()
    return experiments.report(site.store.experiments.get(experiment_id))


@models.patch("/{experiment_id}", responses=problem_responses(404, 409))
def change(
    site: AnySite, principal: Approver, experiment_id: Number, body: ExperimentChange
) -> Experiment:
    """Start, pause, resume, end or cancel an experiment, raise its share, or set another end."""
    return open_experiments(site).change(experiment_id, body, actor=principal.user_id)


@models.post("/{experiment_id}/deploy", responses=problem_responses(404, 409))
def deploy(
    site: AnySite, principal: Approver, experiment_id: Number, body: Justification
) -> Deployment:
    """Deploy the treatment to everybody and end the experiment; where the project asks for
    approval, request it.
    """
    result = answer_refusals(
        lambda: open_experiments(site).deploy(
            experiment_id, reason=body.reason, actor=principal.user_id
        )
    )
    if isinstance(result, ReleaseAct):
        return Deployment(request=result)
    return Deployment(promotion=result)


@api.get("/charts/experiments/{experiment_id}", response_model=Chart)
def read_chart(site: AnySite, _: Reader, experiment_id: Number) -> Response:
    """The interval of the primary metric after each number of sessions."""
    experiment = site.store.experiments.get(experiment_id)
    ends = Analysis.read(site.store, experiment).trace()
    return answer_chart(chart_experiment(experiment, *ends))


@pages.get("/experiments")
def show_page(
    site: AnySite,
    request: Request,
    principal: Reader,
    experiment: Annotated[int | None, Query(ge=1, le=10**9)] = None,
) -> Response:
    return _show(site, request, principal, experiment)


@pages.post("/experiments")
def submit(site: AnySite, request: Request, principal: Approver, form: Form) -> Response:
    """What the button of the form names."""
    number, reason = form.number("key") or 0, form.text("reason").strip()
    changes: dict[str, dict[str, object]] = {
        "end": {"status": "completed"},
        "pause": {"status": "paused"},
        "resume": {"status": "running"},
        "cancel": {"status": "cancelled"},
        "extend": {"traffic_split": form.text("share")},
    }
    new: dict[str, object] = {
        "name": form.text("name").strip(),
        "treatment_model_id": form.text("treatment"),
        "success_metric": form.text("metric"),
    }
    acts: dict[str, Callable[[], object]] = {
        name: lambda fields=fields: change(  # type: ignore[misc]
            site, principal, number, validate(ExperimentChange, {**fields, "reason": reason})
        )
        for name, fields in changes.items()
    }
    acts["start"] = lambda: start(site, principal, validate(NewExperiment, new))
    acts["deploy"] = lambda: deploy(
        site, principal, number, validate(Justification, {"reason": reason})
    )
    act = form.text("act")
    if act not in acts:
        raise Problem(422, f"act is {act!r}; use a button of the page.", kind="invalid")
    _, problem = attempt(acts[act], ExperimentConflict, ReleaseConflict, ModelError)
    if problem is not None:
        return _show(site, request, principal, number or None, problem)
    return see_other("/experiments", notice=f"Done: {act}.")


def _show(
    site: Site,
    request: Request,
    principal: Principal,
    number: int | None,
    problem: Problem | None = None,
) -> Response:
    """The experiment of this number, or the running or paused one, or the newest."""
    live = open_experiments(site).refresh()
    listed = site.store.experiments.all()
    chosen = site.store.experiments.get(number) if number else live or next(iter(listed), None)
    releases = open_releases(site)
    versions = releases.list_models() if Permission.MODELS_PROMOTE in principal.permissions else []
    share = 1.0 if chosen is None else chosen.traffic_split
    return render(
        "experiments/page.html",
        request,
        site,
        principal,
        status=problem.status if problem else 200,
        problem=str(problem) if problem else None,
        shown=chosen and open_experiments(site).report(chosen),
        others=[other for other in listed if other != chosen],
        is_busy=any(other.is_live for other in listed),
        choices=[
            version.label
            for version in reversed(versions)
            if version.kind == "policy" and version.state not in ("deployed", "archived")
        ],
        metrics=get_args(ExperimentMetric),
        next_split=next((split for split in RAMP if split > share), None),
        names=names_for(site, principal),
    )

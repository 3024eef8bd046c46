"""Routes of runs: the state of the loop's runs, schedules, sensors and spending, and their page."""

from typing import Annotated, get_args

from fastapi import APIRouter, Depends, Query, Request, Response
from pydantic import BeforeValidator

from rlhf_pipeline.api_types.base import Name, Page
from rlhf_pipeline.api_types.runs import AutomationsOut, RecordedState, RunOut, SpendingOut
from rlhf_pipeline.errors import StoreError
from rlhf_pipeline.permissions import Permission
from rlhf_pipeline.web.auth import Principal
from rlhf_pipeline.web.dependencies import AnySite, needs
from rlhf_pipeline.web.pagination import Cursor, Limit
from rlhf_pipeline.web.rendering import query_of, render
from rlhf_pipeline.web.routing import api_router
from rlhf_pipeline.web.runs import queries
from rlhf_pipeline.web.site import Site

api, pages = api_router("runs"), APIRouter()
Reader = Annotated[Principal, Depends(needs(Permission.METRICS_READ))]
# an empty field of a form
_Given = BeforeValidator(lambda value: value or None)
OfJob = Annotated[Name | None, _Given, Query(description="Only runs of this job.")]
InState = Annotated[RecordedState | None, _Given, Query(description="Only runs in this state.")]
SHOWN = 50


@api.get("/runs")
def read_runs(
    site: AnySite,
    _: Reader,
    job: OfJob = None,
    state: InState = None,
    cursor: Cursor = None,
    limit: Limit = 50,
) -> Page[RunOut]:
    """Runs of the loop's jobs as Dagster recorded them, newest first. `state=running` finds lost
    ones too. Empty before the first run.
    """
    return queries.read_runs(site, job=job, state=state, cursor=cursor, limit=limit)


@api.get("/automations")
def read_automations(site: AnySite, _: Reader) -> AutomationsOut:
    """Schedules and sensors: whether each is on, when it ran last and runs next, and whether a
    daemon evaluates them.
    """
    return queries.read_automations(site)


@api.get("/spending")
def read_spending(site: AnySite, _: Reader) -> SpendingOut:
    """Money spent on generation today, this month and in 30 days, and the daily budget: the sums
    of the metric points `spend.amount`.
    """
    return queries.read_spending(site)


@pages.get("/runs")
def show_page(
    site: AnySite,
    request: Request,
    principal: Reader,
    job: OfJob = None,
    state: InState = None,
    cursor: Cursor = None,
) -> Response:
    filters = {"job": job or "", "state": state or ""}
    runs, jobs = _read_runs(site, job, state, cursor)
    return render(
        "runs/page.html",
        request,
        site,
        principal,
        automations=queries.read_automations(site),
        spending=queries.read_spending(site),
        runs=runs,
        jobs=jobs,
        states=list(get_args(RecordedState)),
        filters=filters,
        query=query_of(filters),
        dagster=site.settings.dagster_ui.rstrip("/"),
    )


def _read_runs(
    site: Site, job: str | None, state: RecordedState | None, cursor: str | None
) -> tuple[Page[RunOut] | None, list[str]]:
    """Runs, and all jobs that ever ran; without runs where they cannot be read."""
    try:
        page = queries.read_runs(site, job=job, state=state, cursor=cursor, limit=SHOWN)
        return page, site.dagster_runs.list_jobs()
    except StoreError as cause:
        queries.logger.warning("Runs were not read: %s", cause)
        return None, []

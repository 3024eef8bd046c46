"""Routes of runs: the state of the loop's runs, schedules, sensors and spending, and their page."""

from typing import Annotated, get_args

from fastapi import APIRouter, Depends, Query, Request, Response

from rlhf_pipeline.api_types.base import Page
from rlhf_pipeline.errors import StoreError
from rlhf_pipeline.permissions import Permission, Principal
from rlhf_pipeline.web.lists import (
    FilterField,
    ListPage,
    RowList,
    as_choices,
    page_filter,
    render_list,
    send_csv,
    wants_csv,
)
from rlhf_pipeline.web.problems import Problem
from rlhf_pipeline.web.rendering import render
from rlhf_pipeline.web.routing import AnySite, api_router, needs
from rlhf_pipeline.web.runs import queries
from rlhf_pipeline.web.runs.queries import (
    AutomationsOut,
    RecordedState,
    RunFilter,
    RunOut,
    SpendingOut,
)

api, pages = api_router("runs"), APIRouter()
schedule_pages, spending_pages = APIRouter(), APIRouter()
Reader = Annotated[Principal, Depends(needs(Permission.METRICS_READ))]
Asked = Annotated[RunFilter, Query()]
Shown = Annotated[RunFilter, page_filter(RunFilter)]
RUNS = RowList("Runs", "/runs", "runs/page.html", RunOut, key="run_id")
UNREADABLE = (
    "Dagster's records cannot be read; the log of the web app names the cause. The loop itself may "
    "still work."
)


@api.get("/runs")
def read_runs(site: AnySite, _: Reader, asked: Asked) -> Page[RunOut]:
    """Runs of the loop's jobs as Dagster recorded them, newest first. `state=running` finds lost
    ones too. Empty before the first run.
    """
    return queries.read_runs(site, asked)


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
def show_page(site: AnySite, request: Request, principal: Reader, asked: Shown) -> Response:
    if wants_csv(request):
        return send_csv(RUNS, asked, lambda part: queries.read_runs(site, part))
    page, jobs, problem = Page[RunOut](items=(), next=None), [], None
    try:
        page, jobs = queries.read_runs(site, asked), site.dagster_runs.list_jobs()
    except StoreError as cause:
        queries.logger.warning("Runs were not read: %s", cause)
        problem = Problem(503, UNREADABLE)
    fields = [
        FilterField("job", "Job", choices=as_choices(jobs)),
        FilterField("state", "State", choices=as_choices(get_args(RecordedState))),
    ]
    shown = ListPage(asked, page, fields, problem=problem)
    dagster = site.settings.dagster_ui.rstrip("/")
    return render_list(RUNS, request, site, principal, shown, dagster=dagster)


@schedule_pages.get("/runs/schedules")
def show_schedules(site: AnySite, request: Request, principal: Reader) -> Response:
    return render(
        "runs/schedules.html",
        request,
        site,
        principal,
        automations=queries.read_automations(site),
        dagster=site.settings.dagster_ui.rstrip("/"),
    )


@spending_pages.get("/runs/spending")
def show_spending(site: AnySite, request: Request, principal: Reader) -> Response:
    spending = queries.read_spending(site)
    return render("runs/spending.html", request, site, principal, spending=spending)

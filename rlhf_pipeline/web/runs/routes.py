"""Routes of runs: their state and spending, and the pages of these."""

import logging
from collections.abc import Sequence
from datetime import date, datetime, timedelta
from typing import Annotated, Literal, get_args
from urllib.parse import quote

from fastapi import APIRouter, Query, Request, Response
from pydantic import Field

from rlhf_pipeline.core.api_types.base import Answer, Page
from rlhf_pipeline.core.api_types.filters import Filter, Value
from rlhf_pipeline.core.errors import ConfigurationError, StoreError
from rlhf_pipeline.core.monitoring import MetricPoint
from rlhf_pipeline.improve.retraining.jobs import longest_start
from rlhf_pipeline.store.dagster_runs import PipelineRun
from rlhf_pipeline.watch.alerts.rounds import read_budget
from rlhf_pipeline.web.lists import (
    FilterField,
    ListPage,
    RowList,
    as_choices,
    make_cursor,
    page_filter,
    parse_cursor,
    render_list,
    send_csv,
    wants_csv,
)
from rlhf_pipeline.web.problems import Problem
from rlhf_pipeline.web.rendering import render
from rlhf_pipeline.web.routing import AnySite, SignedIn, api_router
from rlhf_pipeline.web.site import Site

api, pages = api_router("runs"), APIRouter()
UNREADABLE = "Dagster's records cannot be read; the log of the web app names the cause."
RecordedState = Literal["queued", "running", "cancelling", "succeeded", "failed", "cancelled"]
RunState = Literal[RecordedState, "lost"]
DAYS = 30
# Dagster's statuses, by the state that pages and the API show
STATUSES: dict[RecordedState, tuple[str, ...]] = {
    "queued": ("QUEUED", "NOT_STARTED", "MANAGED"),
    "running": ("STARTING", "STARTED"),
    "cancelling": ("CANCELING",),
    "succeeded": ("SUCCESS",),
    "failed": ("FAILURE",),
    "cancelled": ("CANCELED",),
}
STATES = {status: state for state, statuses in STATUSES.items() for status in statuses}
logger = logging.getLogger(__name__)


class RunOut(PipelineRun):
    """One run of a job; `__ASSET_JOB`: stages chosen by hand in Dagster."""

    state: RunState = Field(description="`lost`: its process no longer sends heartbeats.")
    duration_s: float | None = Field(description="Until its end, or until now.")
    link: str = Field(description="The run in Dagster.")


class SpendingOut(Answer):
    """Money spent on generation, in the currency of the prices."""

    today: float
    this_month: float = Field(description="Since the first of the month (UTC).")
    days_30: float
    budget_per_day: float | None = Field(
        description="The least daily budget that is set, as the alert `spend` reads it; null "
        "without one."
    )
    days: tuple[MetricPoint, ...] = Field(
        description="Metric points `spend.amount` of the last 30 days, newest first."
    )


class RunFilter(Filter):
    """Which runs of the loop."""

    job: Value = None
    state: RecordedState | None = None


Asked = Annotated[RunFilter, Query()]
Shown = Annotated[RunFilter, page_filter(RunFilter)]
RUNS = RowList("Runs", "/runs", "runs/page.html", RunOut, key="run_id")


@api.get("/runs")
def read_runs(site: AnySite, only: Asked) -> Page[RunOut]:
    """Runs of the loop's jobs as Dagster recorded them, newest first. `state=running` finds lost
    ones too. Empty before the first run.
    """
    place = parse_cursor(only.cursor, int)
    runs = site.dagster_runs.page(
        limit=only.limit,
        before=place[0] if place else None,
        job=only.job,
        statuses=STATUSES[only.state] if only.state else (),
    )
    now = site.store.database.clock.now()
    return Page(
        items=tuple(_describe_run(site, run, now) for run in runs),
        next=make_cursor(runs[-1].number) if len(runs) == only.limit else None,
    )


def _describe_run(site: Site, run: PipelineRun, now: datetime) -> RunOut:
    end = run.ended_at or now
    return RunOut(
        **run.model_dump(),
        state="lost" if _is_lost(site, run, now) else STATES.get(run.status, "queued"),
        duration_s=(end - run.started_at).total_seconds() if run.started_at else None,
        link=f"{site.settings.dagster_ui.rstrip('/')}/runs/{quote(run.run_id)}",
    )


def _is_lost(site: Site, run: PipelineRun, now: datetime) -> bool:
    if STATES.get(run.status) not in ("running", "cancelling"):
        return False
    dead_after = timedelta(seconds=site.settings.dead_after_seconds)
    beat = site.store.heartbeats.get(run.run_id)
    if beat is None:
        return now - run.updated_at > longest_start(dead_after)
    return now - beat.at > dead_after


@api.get("/spending")
def read_spending(site: AnySite) -> SpendingOut:
    """Money spent on generation today, this month and in 30 days, and the daily budget: the sums
    of the metric points `spend.amount`.
    """
    now = site.store.database.clock.now()
    today, first = now.date(), now.date() - timedelta(days=DAYS - 1)
    since = min(first, today.replace(day=1))
    spent = site.store.metric_points.read(["spend.amount"], since=since)
    try:
        budget = read_budget(site.settings)
    except ConfigurationError:  # the page of settings says so
        budget = None
    return SpendingOut(
        today=_add_up(spent, today),
        this_month=_add_up(spent, today.replace(day=1)),
        days_30=_add_up(spent, first),
        budget_per_day=budget,
        days=tuple(point for point in reversed(spent) if point.day >= first),
    )


def _add_up(spent: Sequence[MetricPoint], since: date) -> float:
    return sum(point.value or 0.0 for point in spent if point.day >= since)


@pages.get("/runs")
def show_page(site: AnySite, request: Request, principal: SignedIn, filters: Shown) -> Response:
    if wants_csv(request):
        return send_csv(RUNS, filters, lambda part: read_runs(site, part))
    page, jobs, problem = Page[RunOut](items=(), next=None), [], None
    try:
        page, jobs = read_runs(site, filters), site.dagster_runs.list_jobs()
    except StoreError as cause:
        logger.warning("Runs were not read: %s", cause)
        problem = Problem(503, f"{UNREADABLE} The loop itself may still work.")
    fields = [
        FilterField("job", "Job", choices=as_choices(jobs)),
        FilterField("state", "State", choices=as_choices(get_args(RecordedState))),
    ]
    list_page = ListPage(filters, page, fields, problem=problem)
    dagster = site.settings.dagster_ui.rstrip("/")
    daemon = site.readiness.find_daemon_status()
    return render_list(RUNS, request, site, principal, list_page, dagster=dagster, daemon=daemon)


@pages.get("/runs/spending")
def show_spending(site: AnySite, request: Request, principal: SignedIn) -> Response:
    spending = read_spending(site)
    return render("runs/spending.html", request, site, principal, spending=spending)

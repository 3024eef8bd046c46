"""Routes of compare: two days side by side, as a list, a page and a CSV file."""

from dataclasses import asdict
from datetime import date
from typing import Annotated

from fastapi import APIRouter, Depends, Query, Request, Response
from pydantic import BeforeValidator

from rlhf_pipeline.api_types.compared_days import ComparedDays, DayComparison
from rlhf_pipeline.permissions import Permission
from rlhf_pipeline.web.auth import Principal
from rlhf_pipeline.web.blindness import needs_all_votes
from rlhf_pipeline.web.charts import ChartFilter, Day
from rlhf_pipeline.web.compare import days
from rlhf_pipeline.web.compare.days import DaysFilter, Which
from rlhf_pipeline.web.dependencies import AnySite
from rlhf_pipeline.web.downloads import csv_of
from rlhf_pipeline.web.pagination import Cursor, Limit
from rlhf_pipeline.web.preferences.queries import WITHHELD
from rlhf_pipeline.web.problems import Problem
from rlhf_pipeline.web.rendering import query_of, render
from rlhf_pipeline.web.routing import api_router, problem_responses

api, pages = api_router("compare"), APIRouter()
Reader = Annotated[
    Principal, Depends(needs_all_votes(Permission.VOTES_READ, "the votes of two days"))
]
SHOWN = 20
Chosen = Annotated[
    Which | None,
    BeforeValidator(lambda value: value or None),
    Query(
        description="`earlier`, `later`: comparisons of that day; `both`: those on prompts of both "
        "days, one prompt after the other."
    ),
]
WORDS = {
    "earlier": "of the earlier day",
    "later": "of the later day",
    "both": "on the same prompts",
}


def read_filter(
    which: Chosen = None, category: ChartFilter = None, q: ChartFilter = None
) -> DaysFilter:
    return DaysFilter(which, category, q)


Filter = Annotated[DaysFilter, Depends(read_filter)]


@api.get("/compare/days", responses=problem_responses(404))
def read(
    site: AnySite,
    principal: Reader,
    earlier: date,
    later: date,
    chosen: Filter,
    cursor: Cursor = None,
    limit: Limit = 50,
) -> ComparedDays:
    """Figures of two days with their difference, and the comparisons that people judged on them,
    those first on which the model that predicted them disagreed most with people. `category` and
    `q`, a part of the prompt or of a completion, filter the comparisons, not the figures. What
    people prefer is withheld on a day on which it is of fewer than 20 comparisons. 404 for a day
    without votes.
    """
    return days.compare_days(site, principal, (earlier, later), chosen, cursor=cursor, limit=limit)


@pages.get("/compare/days")
def show_page(
    site: AnySite,
    request: Request,
    principal: Reader,
    chosen: Filter,
    earlier: Day = None,
    later: Day = None,
    cursor: Cursor = None,
) -> Response:
    """Without days, the newest one beside the day with votes before it; with one, the nearest day
    with votes on its other side.
    """
    known = days.list_days(site)
    earlier, later = days.fill_in(known, earlier, later)
    found, problem = None, None
    if earlier is not None and later is not None:
        try:
            found = days.compare_days(
                site, principal, (earlier, later), chosen, cursor=cursor, limit=SHOWN
            )
        except Problem as cause:
            if cause.status not in (404, 422) or cursor is not None:
                raise
            problem = cause.detail
    state = {"earlier": earlier, "later": later} | asdict(chosen)
    return render(
        "compare/days.html",
        request,
        site,
        principal,
        found=found,
        problem=problem,
        days=known,
        state=state,
        which=WORDS,
        withheld=WITHHELD,
        is_counting=found is not None and (found.later.day == known[0] or found.n_not_counted > 0),
        categories=_list_categories(found) if found else {},
        query=query_of({name: str(value or "") for name, value in state.items()}),
    )


def _list_categories(found: ComparedDays) -> dict[str, str]:
    return {one: one for one in sorted({*found.earlier.by_category, *found.later.by_category})}


@pages.get("/compare/days.csv")
def download(
    site: AnySite, principal: Reader, earlier: date, later: date, chosen: Filter
) -> Response:
    found = days.compare_days(site, principal, (earlier, later), chosen, limit=2 * days.VOTES_READ)
    name = f"days_{earlier}_and_{later}"
    return csv_of(name, list(DayComparison.model_fields), found.items)

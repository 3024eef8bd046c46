"""Routes of compare: two policy versions prompt by prompt, as a list, a page and a CSV file."""

from typing import Annotated

from fastapi import APIRouter, Depends, Query, Request, Response

from rlhf_pipeline.permissions import Permission, Principal
from rlhf_pipeline.web.compare import queries
from rlhf_pipeline.web.compare.queries import (
    ComparedPrompt,
    ComparedVersions,
    ComparedVersionsFilter,
    CompareFilter,
)
from rlhf_pipeline.web.evolution.queries import list_versions
from rlhf_pipeline.web.lists import AT_ONCE, csv_of, read_all_pages
from rlhf_pipeline.web.problems import Problem
from rlhf_pipeline.web.rendering import query_of, render
from rlhf_pipeline.web.routing import AnySite, api_router, needs, problem_responses

api, pages = api_router("compare"), APIRouter()
Reader = Annotated[Principal, Depends(needs(Permission.METRICS_READ))]
SHOWN = 20
Asked = Annotated[ComparedVersionsFilter, Query()]
ORDERS = {"disagreement": "largest difference first", "a": "A better first", "b": "B better first"}


@api.get("/compare", responses=problem_responses(404))
def read(site: AnySite, _: Reader, asked: Asked) -> ComparedVersions:
    """Completions of versions `a` and `b` on the prompts of the evaluation set, with the reward
    model's scores where one evaluation judged both. `category` and `q`, a part of the prompt or of
    a completion, filter. 404 where no evaluation has completions of both.
    """
    return queries.compare(site, asked)


@pages.get("/compare")
def show_page(
    site: AnySite,
    request: Request,
    principal: Reader,
    chosen: Annotated[CompareFilter, Query()],
) -> Response:
    """Without versions, the newest candidate beside its champion; with one, its newest partner."""
    pairs, versions = queries.list_pairs(site), list_versions(site)
    a, b = chosen.a, chosen.b
    if a is None and b is None and pairs:
        b, a = pairs[0]
    elif a is None and b is not None:
        a = queries.find_partner(b, pairs, versions)
    elif b is None and a is not None:
        b = queries.find_partner(a, pairs, versions)
    found, problem = None, None
    if a is not None and b is not None:
        try:
            named = chosen.model_dump() | {"a": a, "b": b, "limit": SHOWN}
            found = queries.compare(site, ComparedVersionsFilter.model_validate(named))
        except Problem as cause:
            if cause.status not in (404, 422) or chosen.cursor is not None:
                raise
            problem = cause
    state = {**chosen.chosen, "a": a, "b": b}
    return render(
        "compare/page.html",
        request,
        site,
        principal,
        found=found,
        problem=problem,
        versions=versions,
        categories={
            one: one
            for one in (found.categories if found else queries.list_categories(site, pairs))
        },
        state=state,
        orders=ORDERS,
        what_exists=queries.describe_pairs(pairs),
        query=query_of({name: str(value or "") for name, value in state.items()}),
    )


@pages.get("/compare.csv")
def download(site: AnySite, _: Reader, asked: Asked) -> Response:
    rows = read_all_pages(lambda cursor: queries.compare(site, asked.at(cursor, AT_ONCE)))
    name = f"policies_{asked.a}_and_{asked.b}"
    return csv_of(name, list(ComparedPrompt.model_fields), rows)

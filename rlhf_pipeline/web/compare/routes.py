"""Routes of compare: two policy versions prompt by prompt, as a list, a page and a file."""

from dataclasses import replace
from typing import Annotated

from fastapi import APIRouter, Depends, Query, Request, Response

from rlhf_pipeline.core.api_types.base import Page
from rlhf_pipeline.web.compare import queries
from rlhf_pipeline.web.compare.queries import (
    ComparedPrompt,
    ComparedVersions,
    ComparedVersionsFilter,
    CompareFilter,
)
from rlhf_pipeline.web.evolution.queries import list_versions
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
from rlhf_pipeline.web.permissions import Permission, Principal
from rlhf_pipeline.web.problems import Problem
from rlhf_pipeline.web.routing import AnySite, api_router, needs, problem_responses

api, pages = api_router("compare"), APIRouter()
Reader = Annotated[Principal, Depends(needs(Permission.METRICS_READ))]
Asked = Annotated[ComparedVersionsFilter, Query()]
Shown = Annotated[CompareFilter, page_filter(CompareFilter)]
PROMPTS = RowList("Compare", "/compare", "compare/page.html", ComparedPrompt, key="prompt_id")


@api.get("/compare", responses=problem_responses(404))
def read(site: AnySite, _: Reader, filters: Asked) -> ComparedVersions:
    """Completions of versions `a` and `b` on the prompts of the evaluation set, with the reward
    model's scores where one evaluation judged both. `category` and `q`, a part of the prompt or of
    a completion, filter. 404 where no evaluation has completions of both.
    """
    return queries.compare(site, filters)


@pages.get("/compare")
def show_page(site: AnySite, request: Request, principal: Reader, selection: Shown) -> Response:
    """Without versions, the newest candidate beside its champion."""
    pairs, versions = queries.list_pairs(site), list_versions(site)
    filters = queries.choose_versions(selection, pairs)
    if filters is None:
        empty = ListPage(selection, Page[ComparedPrompt](items=(), next=None))
        nothing = ("Nothing to compare yet", queries.describe_pairs(pairs))
        return render_list(PROMPTS, request, site, principal, empty, result=None, nothing=nothing)
    if wants_csv(request):
        return send_csv(PROMPTS, filters, lambda part: queries.compare(site, part))
    result, nothing = None, ("No matching prompts", "No prompt matches these filters.")
    title = f"Policy {filters.b} and policy {filters.a}"
    try:
        result = queries.compare(site, filters)
        title = f"Policy {filters.b} wins {result.win_rate.value:.0%} against policy {filters.a}"
    except Problem as cause:
        if cause.status not in (404, 422) or filters.cursor is not None:
            raise
        is_same = filters.a == filters.b
        nothing = "Choose two versions" if is_same else "Never evaluated together", cause.detail
    policies = {str(version): f"policy {version}" for version in versions}
    categories = result.categories if result else queries.list_categories(site, pairs)
    fields = [
        FilterField("a", "A", choices=policies, default=str(filters.a)),
        FilterField("b", "B", choices=policies, default=str(filters.b)),
        FilterField("category", "Category", choices=as_choices(categories)),
        FilterField("q", "Words in a text", "search"),
    ]
    page = result or Page[ComparedPrompt](items=(), next=None)
    return render_list(
        replace(PROMPTS, title=title),
        request,
        site,
        principal,
        ListPage(filters, page, fields),
        result=result,
        nothing=nothing,
    )

"""Routes of preferences: charts of what people prefer, and the page that shows them."""

from typing import Annotated, Literal

from fastapi import APIRouter, Depends, Query, Request, Response

from rlhf_pipeline.reports.chart import Chart
from rlhf_pipeline.web.permissions import Permission, Principal
from rlhf_pipeline.web.preferences import queries
from rlhf_pipeline.web.preferences.queries import PreferenceFilter, PreferenceGrouping
from rlhf_pipeline.web.rendering import query_of, render
from rlhf_pipeline.web.routing import AnySite, answer_chart, api_router, needs

api, pages = api_router("charts"), APIRouter()
Reader = Annotated[Principal, Depends(needs(Permission.METRICS_READ))]
FigureName = Literal["choices", "ties", "strength", "agreement", "preferred"]
WORDS: dict[PreferenceGrouping, str] = {
    "day": "over time",
    "category": "by category",
    "source": "by source",
    "group": "by group of annotators",
}


Chosen = Annotated[PreferenceFilter, Query()]


@api.get("/charts/preferences/{figure}", response_model=Chart)
def read_chart(
    site: AnySite,
    principal: Reader,
    figure: FigureName,
    chosen: Chosen,
) -> Response:
    """What people choose, how often they are undecided, how strongly they prefer a side, how far
    they agree, and what is preferred: length, style, dimensions. Counts people's votes that count
    now. Groups of which fewer than 3 annotators voted in the selection and figures of fewer than 20
    comparisons are withheld; with `group` (of annotators), also each day, category or source that
    fewer than 3 of its annotators voted on. Without `until`, up to the newest day with votes;
    without `since`, 90 days. `model` is the model of both completions.
    """
    return answer_chart(queries.build_chart(site, principal, figure, chosen))


@pages.get("/preferences")
def show_page(site: AnySite, request: Request, principal: Reader, chosen: Chosen) -> Response:
    choices = queries.choices_of_filters(site, chosen)
    counts = site.vote_counts().by_day
    first, _ = chosen.resolve(max(counts, default=None))
    return render(
        "preferences/page.html",
        request,
        site,
        principal,
        has_votes=site.store.votes.max_seq() > 0,
        filters=chosen.chosen,
        left_out=chosen.find_left_out(counts),
        n_earlier=sum(n for day, n in counts.items() if day < first),
        choices=choices,
        by=chosen.by,
        views=WORDS,
        query=query_of({**chosen.chosen, "by": ""}),
    )

"""Routes of calibration: the log of calibrators, predictions beside later votes, charts, pages."""

from dataclasses import replace
from typing import Annotated

from fastapi import APIRouter, Depends, Query, Request, Response

from rlhf_pipeline.core.api_types.base import Page
from rlhf_pipeline.core.api_types.filters import ProbeFilter
from rlhf_pipeline.core.records import ReliabilityBin
from rlhf_pipeline.reports.calibration import describe_bin
from rlhf_pipeline.reports.chart import Chart
from rlhf_pipeline.reports.words import name_models
from rlhf_pipeline.web.calibration import charts, queries
from rlhf_pipeline.web.calibration.answers import (
    CalibrationBinFilter,
    CalibrationFilter,
    CalibrationOut,
    CalibrationPageFilter,
    ProbedPair,
    ProbedPairFilter,
    ProbeOut,
)
from rlhf_pipeline.web.lists import (
    FilterField,
    ListPage,
    Paged,
    RowList,
    as_choices,
    list_sources,
    page_filter,
    render_list,
    send_csv,
    wants_csv,
)
from rlhf_pipeline.web.permissions import Permission, Principal
from rlhf_pipeline.web.rendering import names_for, query_of
from rlhf_pipeline.web.routing import AnySite, answer_chart, api_router, needs, problem_responses

api, pages = api_router("calibration"), APIRouter()
Reader = Annotated[Principal, Depends(needs(Permission.METRICS_READ))]
Asker = Annotated[Principal, Depends(needs(Permission.PREDICTIONS_MAKE))]
Shown = Annotated[CalibrationPageFilter, page_filter(CalibrationPageFilter)]
ShownBin = Annotated[CalibrationBinFilter, page_filter(CalibrationBinFilter)]
CALIBRATORS = RowList(
    "Calibration", "/calibration", "calibration/page.html", CalibrationOut, key="version"
)
PAIRS = RowList("Votes", "/calibration/pairs", "calibration/pairs.html", ProbedPair, key="seq")


@api.get("/calibrations")
def read_all(site: AnySite, _: Reader, filters: Paged) -> Page[CalibrationOut]:
    """All calibrators with their effect, and imported reports; the last fitted first."""
    return queries.page(site, filters)


@api.get("/calibrations/probe")
def read_probe(site: AnySite, _: Reader, filters: Annotated[ProbeFilter, Query()]) -> ProbeOut:
    """A reliability diagram of predictions made before their votes: stated confidence against the
    share that was right, with counts and Wilson intervals. For a model with more than 1,000
    votes, the newest ones of the days are used; `category`, `source` and `group` (of annotators)
    choose among these. Chosen votes on fewer than 10 comparisons are withheld, and those of a group
    in which fewer than 3 annotators voted.
    """
    return site.probe(filters).figures


@api.get("/calibrations/probe/pairs", responses=problem_responses(404))
def read_pairs(
    site: AnySite, principal: Asker, filters: Annotated[ProbedPairFilter, Query()]
) -> Page[ProbedPair]:
    """The votes in a bin of the diagram, wrong predictions first."""
    return queries.pairs(site, principal, filters)[1]


@api.get(
    "/charts/calibration/{figure}",
    response_model=Chart,
    responses=problem_responses(404),
    tags=["charts"],
)
def read_chart(
    site: AnySite,
    principal: Reader,
    figure: charts.FigureName,
    selection: Annotated[CalibrationFilter, Query()],
) -> Response:
    """Reliability and calibration error before and after calibration. `later_votes` and
    `later_groups` compare predictions with votes that came after them: the curve, and the error by
    category and source. `before_after` and `groups` do so on the test split of a calibrator, and
    `dimensions` shows the error there of the reward model's head of each dimension of the rubric
    beside that of its score; `calibrators` shows the errors of the last 40 calibrators.

    `dimension` adds the curves of one head to `before_after`; other figures ignore it.

    `model` is a reward model as name@version, `version` the number of one of its calibrators.
    Without them: the model that predicted last through any calibrator, and on the test split the
    calibrator that the champion predicts through. `group` (of annotators), `since` and `until`
    choose later votes. Chosen votes on fewer than 10 comparisons are withheld, and those of a group
    in which fewer than 3 annotators voted.
    """
    return answer_chart(charts.draw(site, principal, figure, selection))


@pages.get("/calibration")
def show_page(site: AnySite, request: Request, principal: Reader, filters: Shown) -> Response:
    def read_page(part: CalibrationPageFilter) -> Page[CalibrationOut]:
        return queries.page(site, part, part.model)

    if wants_csv(request):
        return send_csv(CALIBRATORS, filters, read_page)
    page, probe = read_page(filters), queries.read_probe(site, filters)
    fit = queries.find_selected(site, filters)
    heads = () if fit is None else fit.report.by_dimension
    fields = [
        FilterField("since", "Days", "days"),
        FilterField(
            "model",
            "Reward model",
            choices={model: name_models(model) for model in site.store.calibrations.models()},
        ),
        FilterField("version", "Calibrator", "given"),
        FilterField(
            "category", "Category", choices=as_choices(site.store.comparisons.values_of("category"))
        ),
        FilterField("source", "Source", choices=as_choices(list_sources(site))),
        FilterField("group", "Group", choices=as_choices(sorted(site.group_sizes()))),
        FilterField("dimension", "Dimension", choices=as_choices(head.group for head in heads)),
    ]
    is_empty = not page.items and (probe is None or probe.reward_model is None)
    return render_list(
        replace(CALIBRATORS, title=queries.write_headline(probe)),
        request,
        site,
        principal,
        ListPage(filters, page, [] if is_empty and not query_of(filters.chosen) else fields),
        probe=probe,
        fit=fit,
        is_charted=len(page.items) > 1,
        votes_of=queries.describe_votes(filters),
        minimum=queries.describe_minimum(filters),
    )


@pages.get("/calibration/pairs")
def show_pairs(site: AnySite, request: Request, principal: Asker, filters: ShownBin) -> Response:
    probe = queries.build_probe_filter(site, filters).model_dump()

    def read_part(part: CalibrationBinFilter) -> tuple[ReliabilityBin, Page[ProbedPair]]:
        place = {"bin": part.bin, "cursor": part.cursor, "limit": part.limit}
        return queries.pairs(site, principal, ProbedPairFilter.model_validate(probe | place))

    if wants_csv(request):
        return send_csv(PAIRS, filters, lambda part: read_part(part)[1])
    chosen_bin, page = read_part(filters)
    title = f"Votes with a confidence of {chosen_bin.low:.0%} to {chosen_bin.high:.0%}"
    return render_list(
        replace(PAIRS, title=title),
        request,
        site,
        principal,
        ListPage(filters, page),
        votes_of=queries.describe_votes(filters),
        words=describe_bin(chosen_bin),
        names=names_for(site, principal),
        back=f"/calibration?{queries.query_of_selection(filters)}",
    )

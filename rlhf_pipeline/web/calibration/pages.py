"""The page of calibrators, of the reliability of predictions, and of the votes in each bin."""

from dataclasses import replace
from typing import Annotated

from fastapi import APIRouter, Depends, Query, Request, Response

from rlhf_pipeline.api_types.base import Page
from rlhf_pipeline.permissions import Permission, Principal
from rlhf_pipeline.reports.calibration import describe_bin
from rlhf_pipeline.web.calibration import queries
from rlhf_pipeline.web.calibration.queries import (
    CalibrationBinFilter,
    CalibrationPageFilter,
    ProbedPair,
    ProbedPairFilter,
    query_of_selection,
)
from rlhf_pipeline.web.lists import (
    AT_ONCE,
    ListPage,
    RowList,
    csv_of,
    list_sources,
    page_filter,
    read_all_pages,
    render_list,
    send_csv,
    wants_csv,
)
from rlhf_pipeline.web.rendering import names_for, render
from rlhf_pipeline.web.routing import AnySite, needs

router = APIRouter()
Reader = Annotated[Principal, Depends(needs(Permission.METRICS_READ))]
Asker = Annotated[Principal, Depends(needs(Permission.PREDICTIONS_MAKE))]
COLUMNS = (
    *("reward_model", "version", "calibrator_version", "method", "state", "fitted_at", "n_fit"),
    *("raw", "calibrated", "noise_ceiling", "refusal", "data_seq"),
)
ShownBin = Annotated[CalibrationBinFilter, page_filter(CalibrationBinFilter)]
PAIRS = RowList("Votes", "/calibration/pairs", "calibration/pairs.html", ProbedPair, key="seq")
SHOWN = 20  # calibrators


@router.get("/calibration")
def read(
    site: AnySite,
    request: Request,
    principal: Reader,
    selection: Annotated[CalibrationPageFilter, Query()],
) -> Response:
    chosen = queries.find_chosen(site, selection)
    shown = queries.find_shown(site, selection)
    heads = () if shown is None else shown.report.by_dimension
    page = queries.page(site, cursor=selection.cursor, limit=SHOWN)
    is_imported = chosen is not None and chosen.is_imported
    asked = queries.build_probe_query(selection, chosen)
    return render(
        "calibration/page.html",
        request,
        site,
        principal,
        page=page,
        is_later=selection.cursor is not None,
        selection=selection,
        query_of_selection=query_of_selection,
        words=queries.describe_votes(selection),
        minimum=queries.describe_minimum(selection),
        choices={
            "model": {one: one for one in site.store.calibrations.models()},
            "category": {one: one for one in site.store.comparisons.values_of("category")},
            "source": {one: one for one in list_sources(site)},
            "group": {one: one for one in sorted(site.group_sizes())},
            "dimension": {one.group: one.group for one in heads},
        },
        heads=heads,
        shown=None
        if shown is None
        else queries.entry(site, shown.report.reward_model, shown.version),
        is_imported=is_imported,
        probe=None if is_imported else queries.probe_of(site, asked),
    )


@router.get("/calibration.csv")
def download(site: AnySite, principal: Reader) -> Response:
    rows = read_all_pages(lambda cursor: queries.page(site, cursor=cursor, limit=AT_ONCE))
    return csv_of("calibration", COLUMNS, rows)


@router.get("/calibration/pairs")
def pairs(site: AnySite, request: Request, principal: Asker, asked: ShownBin) -> Response:
    probe = queries.build_probe_query(asked, queries.find_chosen(site, asked))

    def read_pairs(part: CalibrationBinFilter) -> Page[ProbedPair]:
        place = {"bin": part.bin, "cursor": part.cursor, "limit": part.limit}
        only = ProbedPairFilter.model_validate(probe.model_dump() | place)
        return queries.pairs(site, principal, only)[1]

    if wants_csv(request):
        return send_csv(PAIRS, asked, read_pairs)
    only = ProbedPairFilter.model_validate(probe.model_dump() | {"bin": asked.bin, "limit": 1})
    wanted, _ = queries.pairs(site, principal, only)
    title = f"Votes with a confidence of {wanted.low:.0%} to {wanted.high:.0%}"
    return render_list(
        replace(PAIRS, title=title),
        request,
        site,
        principal,
        ListPage(asked, read_pairs(asked)),
        votes_of=queries.describe_votes(asked),
        words=describe_bin(wanted),
        names=names_for(site, principal),
        back=f"/calibration?{query_of_selection(asked)}#served",
    )

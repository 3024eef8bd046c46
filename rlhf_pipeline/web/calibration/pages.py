"""The page of calibrators, of the reliability of predictions, and of the votes in each bin."""

from typing import Annotated

from fastapi import APIRouter, Depends, Query, Request, Response

from rlhf_pipeline.api_types.filters import (
    CalibrationBinFilter,
    CalibrationPageFilter,
    ProbedPairFilter,
)
from rlhf_pipeline.api_types.predictions import CalibrationOut
from rlhf_pipeline.permissions import Permission
from rlhf_pipeline.reports.calibration import describe_bin
from rlhf_pipeline.web.auth import Principal
from rlhf_pipeline.web.calibration import queries
from rlhf_pipeline.web.calibration.queries import query_of_selection
from rlhf_pipeline.web.dependencies import AnySite, needs
from rlhf_pipeline.web.downloads import AT_ONCE, csv_of, read_all_pages
from rlhf_pipeline.web.pick_lists import list_sources
from rlhf_pipeline.web.rendering import names_for, render

router = APIRouter()
Reader = Annotated[Principal, Depends(needs(Permission.METRICS_READ))]
Asker = Annotated[Principal, Depends(needs(Permission.PREDICTIONS_MAKE))]
SHOWN = 20  # calibrators, and pairs


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
    return csv_of("calibration", list(CalibrationOut.model_fields), rows)


@router.get("/calibration/pairs")
def pairs(
    site: AnySite,
    request: Request,
    principal: Asker,
    selection: Annotated[CalibrationBinFilter, Query()],
) -> Response:
    probe = queries.build_probe_query(selection, queries.find_chosen(site, selection))
    place = {"bin": selection.bin, "cursor": selection.cursor, "limit": SHOWN}
    asked = ProbedPairFilter.model_validate(probe.model_dump() | place)
    wanted, page = queries.pairs(site, principal, asked)
    return render(
        "calibration/pairs.html",
        request,
        site,
        principal,
        page=page,
        bin=wanted,
        chosen=queries.describe_votes(selection),
        words=describe_bin(wanted),
        names=names_for(site, principal),
        query=f"{query_of_selection(selection, bin=str(selection.bin))}&",
        back=f"/calibration?{query_of_selection(selection)}#served",
    )

"""The page of calibrators, of the reliability of predictions, and of the votes in each bin."""

from collections.abc import Sequence
from typing import Annotated
from urllib.parse import urlencode

from fastapi import APIRouter, Depends, Query, Request, Response
from markupsafe import Markup

from rlhf_pipeline.api_types.predictions import CalibrationOut
from rlhf_pipeline.permissions import Permission
from rlhf_pipeline.records import Interval, ReliabilityBin, Text
from rlhf_pipeline.reports.calibration import chart_calibrators, chart_reliability, describe_bin
from rlhf_pipeline.reports.draw import draw_svg
from rlhf_pipeline.store.calibrations import LoggedCalibration
from rlhf_pipeline.web.auth import Principal
from rlhf_pipeline.web.blindness import needs_all_votes
from rlhf_pipeline.web.calibration import queries
from rlhf_pipeline.web.calibration.probe_counter import ProbeQuery
from rlhf_pipeline.web.calibration.queries import CALIBRATION
from rlhf_pipeline.web.dependencies import AnySite
from rlhf_pipeline.web.downloads import AT_ONCE, csv_of, read_all_pages
from rlhf_pipeline.web.pagination import Cursor
from rlhf_pipeline.web.problems import Problem
from rlhf_pipeline.web.rendering import names_for, query_of, render
from rlhf_pipeline.web.site import Site

router = APIRouter()
Reader = Annotated[Principal, Depends(needs_all_votes(Permission.METRICS_READ, CALIBRATION))]
Asker = Annotated[Principal, Depends(needs_all_votes(Permission.PREDICTIONS_MAKE, CALIBRATION))]
SHOWN = 20  # calibrators, and pairs
DRAWN = 40  # calibrators in the chart
WAIT_S = 1.0  # to wait for the first count before the page is rendered without it

ModelName = Annotated[Text | None, Query(max_length=200)]
Version = Annotated[int | None, Query(ge=1, lt=2**31)]
Bin = Annotated[float, Query(ge=0.5, le=1, alias="bin")]


@router.get("/calibration")
def read(
    site: AnySite,
    request: Request,
    principal: Reader,
    model: ModelName = None,
    version: Version = None,
    cursor: Cursor = None,
) -> Response:
    chosen = _find_calibration(site, model, version)
    asked = _build_query(model, chosen)
    page = queries.page(site, cursor=cursor, limit=SHOWN)
    drawn = (
        page.items
        if cursor is None and page.next is None
        else queries.page(site, cursor=None, limit=DRAWN).items
    )
    probe = (
        None
        if chosen is not None and chosen.is_imported
        else queries.probe_of(site, asked, wait_s=WAIT_S)
    )
    pairs_at = (
        _pairs_url(asked, model, version) if principal.may(Permission.PREDICTIONS_MAKE) else None
    )
    return render(
        "calibration/page.html",
        request,
        site,
        principal,
        page=page,
        is_later=cursor is not None,
        series=_draw_series(drawn[::-1]),
        chosen=None
        if chosen is None
        else queries.entry(site, chosen.report.reward_model, chosen.version),
        before=None
        if chosen is None
        else _draw_bins("before", chosen.report.raw_bins, chosen.report.noise_ceiling),
        after=None
        if chosen is None
        else _draw_bins("after", chosen.report.calibrated_bins, chosen.report.noise_ceiling),
        probe=probe,
        served=None
        if probe is None or not probe.bins
        else _draw_bins("later votes", probe.bins, probe.noise_ceiling, pairs_at),
        pairs_at=pairs_at,
        middle_of=_format_middle,
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
    value: Bin,
    model: ModelName = None,
    version: Version = None,
    cursor: Cursor = None,
) -> Response:
    asked = _build_query(model, _find_calibration(site, model, version))
    wanted, page = queries.pairs(
        site, principal, asked, value, cursor=cursor, limit=SHOWN, wait_s=WAIT_S
    )
    query = {"model": model or "", "version": "" if version is None else str(version)}
    return render(
        "calibration/pairs.html",
        request,
        site,
        principal,
        page=page,
        bin=wanted,
        words=describe_bin(wanted),
        names=names_for(site, principal),
        query=query_of({**query, "bin": str(value)}),
        back=f"/calibration?{query_of(query)}#served",
    )


def _draw_bins(
    name: str,
    bins: Sequence[ReliabilityBin],
    ceiling: Interval | None,
    pairs_at: str | None = None,
) -> Markup | None:
    """Draw the reliability diagram; bins link to their pairs if `pairs_at` is given."""
    if not bins:
        return None
    link = None if pairs_at is None else lambda b: pairs_at + _format_middle(b)
    return draw_svg(
        chart_reliability({name: bins}, ceiling, title=name, width=480, unit="votes", link=link)
    )


def _draw_series(entries: Sequence[CalibrationOut]) -> Markup | None:
    """Draw ECE before and after each calibration; None for a single calibration."""
    if len(entries) < 2:
        return None
    before, after = [e.ece_raw for e in entries], [e.ece_calibrated for e in entries]
    return draw_svg(chart_calibrators(before, after))


def _format_middle(b: ReliabilityBin) -> str:
    """The stated confidence that names a bin in an address."""
    return f"{(b.low + b.high) / 2:.4f}".rstrip("0")


def _find_calibration(
    site: Site, model: str | None, version: int | None
) -> LoggedCalibration | None:
    """Raises Problem 404 for a calibrator that is not in the log, 422 for a number without its
    model.
    """
    if version is None:
        return None
    if model is None:
        raise Problem(
            422,
            "version needs its model: add ?model=name@version.",
            kind="invalid",
            errors=[("query.model", "is missing")],
        )
    found = site.store.calibrations.entry(model, version)
    if found is None:
        raise Problem(404, f"The log has no calibrator {version} of {model!r}.", kind="not_found")
    return found


def _build_query(model: str | None, chosen: LoggedCalibration | None) -> ProbeQuery:
    return ProbeQuery(model, None if chosen is None else f"{chosen.report.method}@{chosen.version}")


def _pairs_url(asked: ProbeQuery, model: str | None, version: int | None) -> str:
    """The address of the pairs of a bin, up to the bin."""
    said = {"model": model, "version": None if version is None else str(version)}
    return "/calibration/pairs?" + urlencode(
        {name: value for name, value in said.items() if value} | {"bin": ""}
    )

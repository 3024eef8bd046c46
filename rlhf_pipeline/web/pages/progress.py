"""How far the work is, as a page. Knows bars; counts are `web.progress`'s."""

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import date
from typing import Annotated

from fastapi import APIRouter, Depends, Request, Response

from rlhf_pipeline.api_types.project import AnnotatorProgress, DayCount
from rlhf_pipeline.permissions import Permission
from rlhf_pipeline.web import progress
from rlhf_pipeline.web.auth import Principal
from rlhf_pipeline.web.blindness import blind_reader_id
from rlhf_pipeline.web.dependencies import AnySite, needs
from rlhf_pipeline.web.pages.downloads import csv_of
from rlhf_pipeline.web.pages.rendering import render

router = APIRouter()
Reader = Annotated[Principal, Depends(needs(Permission.PROGRESS_READ))]
WIDTH, HEIGHT = 900, 120
WIDEST = 48.0
DAYS_DRAWN = 366


@dataclass(frozen=True)
class Bar:
    """One day's votes, in the units of the drawing."""

    day: date
    n: int
    x: float
    y: float
    width: float
    height: float


@dataclass(frozen=True)
class Bars:
    """All days between the first and the last, those without votes too; of more than a year the
    last one.
    """

    days: list[Bar]
    most: int
    width: int = WIDTH
    height: int = HEIGHT


@router.get("/progress")
def read(site: AnySite, request: Request, principal: Reader) -> Response:
    now = progress.project_progress(site, principal)
    told = (
        None
        if blind_reader_id(principal) is None
        else "You may vote, so this counts only votes on comparisons that you have judged."
    )
    return render(
        "progress.html",
        request,
        site,
        principal,
        told=told,
        progress=now,
        bars=build_bars(now.votes_by_day),
    )


@router.get("/progress.csv")
def download(site: AnySite, principal: Reader) -> Response:
    now = progress.project_progress(site, principal)
    return csv_of("annotators", list(AnnotatorProgress.model_fields), now.annotators)


def build_bars(counts: Sequence[DayCount]) -> Bars:
    if not counts:
        return Bars([], 0)
    last = counts[-1].day.toordinal()
    first = max(counts[0].day.toordinal(), last - DAYS_DRAWN + 1)
    n_days = last - first + 1
    by_day = {one.day.toordinal(): one.n for one in counts if one.day.toordinal() >= first}
    most = max(by_day.values())
    step = min(WIDEST, WIDTH / n_days)
    days = []
    for i in range(n_days):
        n = by_day.get(first + i, 0)
        height = HEIGHT * n / most if most else 0.0
        bar = Bar(
            date.fromordinal(first + i),
            n,
            round(i * step, 2),
            round(HEIGHT - height, 2),
            round(step * 0.8, 2),
            round(height, 2),
        )
        days.append(bar)
    return Bars(days, most)

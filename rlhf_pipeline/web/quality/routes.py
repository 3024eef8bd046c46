"""Routes of data quality: figures by annotator, as a page and as a file."""

from typing import Annotated

from fastapi import APIRouter, Depends, Request, Response

from rlhf_pipeline.api_types.project import AnnotatorQuality, QualityOut
from rlhf_pipeline.permissions import Permission
from rlhf_pipeline.votes.quality import Mark
from rlhf_pipeline.web.auth import Principal
from rlhf_pipeline.web.blindness import blind_reader_id
from rlhf_pipeline.web.dependencies import AnySite, needs
from rlhf_pipeline.web.downloads import csv_of
from rlhf_pipeline.web.quality import queries
from rlhf_pipeline.web.rendering import render
from rlhf_pipeline.web.routing import api_router

api = api_router("quality")
pages = APIRouter()
Reader = Annotated[Principal, Depends(needs(Permission.VOTES_READ))]
WORDS: dict[Mark, str] = {
    "too_fast": "too fast to read",
    "same_as_before": "same side as before",
    "duplicate": "duplicate pair",
}


@api.get("/quality")
def read(
    site: AnySite, principal: Annotated[Principal, Depends(needs(Permission.VOTES_READ))]
) -> QualityOut:
    """Marked votes per annotator: too fast, same side as before, or duplicate pair, each with an
    interval. The most doubtful annotators come first. `GET votes` with `mark` lists the votes.
    Votes by machines are not counted."""
    return queries.project_quality(site, principal)


@pages.get("/quality")
def show_page(site: AnySite, request: Request, principal: Reader) -> Response:
    sees_all = blind_reader_id(principal) is None
    return render(
        "quality/page.html",
        request,
        site,
        principal,
        notice=None
        if sees_all
        else "You may vote, so this page counts only votes on comparisons that you have judged.",
        found=queries.project_quality(site, principal),
        marks={
            mark: words for mark, words in WORDS.items() if mark in queries.visible_marks(principal)
        },
    )


@pages.get("/quality.csv")
def download(site: AnySite, principal: Reader) -> Response:
    return csv_of(
        "quality",
        list(AnnotatorQuality.model_fields),
        queries.project_quality(site, principal).annotators,
    )

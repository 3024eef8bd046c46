"""How carefully people vote, as a page: each figure leads to its votes. Knows words; figures are
`web.quality`'s.
"""

from typing import Annotated

from fastapi import APIRouter, Depends, Request, Response

from rlhf_pipeline.api_types.project import AnnotatorQuality
from rlhf_pipeline.permissions import Permission
from rlhf_pipeline.votes.quality import Mark
from rlhf_pipeline.web import quality
from rlhf_pipeline.web.auth import Principal
from rlhf_pipeline.web.blindness import blind_reader_id
from rlhf_pipeline.web.dependencies import AnySite, needs
from rlhf_pipeline.web.pages.downloads import csv_of
from rlhf_pipeline.web.pages.rendering import render

router = APIRouter()
Reader = Annotated[Principal, Depends(needs(Permission.VOTES_READ))]
WORDS: dict[Mark, str] = {
    "too_fast": "too fast to read",
    "same_as_before": "the same as before",
    "duplicate": "the same pair again",
}


@router.get("/quality")
def read(site: AnySite, request: Request, principal: Reader) -> Response:
    sees_all = blind_reader_id(principal) is None
    return render(
        "quality.html",
        request,
        site,
        principal,
        told=None
        if sees_all
        else "You may vote, so this counts only votes on comparisons that you have judged.",
        found=quality.project_quality(site, principal),
        marks={
            mark: words for mark, words in WORDS.items() if mark in quality.visible_marks(principal)
        },
    )


@router.get("/quality.csv")
def download(site: AnySite, principal: Reader) -> Response:
    return csv_of(
        "quality",
        list(AnnotatorQuality.model_fields),
        quality.project_quality(site, principal).annotators,
    )

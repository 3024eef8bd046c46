"""The routes of /api/v1, a file per noun. Knows the files; each knows its own requests and
answers.
"""

from fastapi.routing import APIRoute

from rlhf_pipeline.web.api import (
    audit,
    auth,
    calibration,
    cards,
    comparisons,
    completions,
    consensus,
    feedback,
    guidelines,
    health,
    me,
    predictions,
    progress,
    quality,
    users,
    votes,
)

NOUNS = (
    votes,
    cards,
    auth,
    me,
    comparisons,
    consensus,
    guidelines,
    users,
    progress,
    quality,
    predictions,
    completions,
    calibration,
    feedback,
    audit,
    health,
)  # the busy ones first


def routes() -> list[APIRoute]:
    return [route for noun in NOUNS for route in noun.router.routes if isinstance(route, APIRoute)]

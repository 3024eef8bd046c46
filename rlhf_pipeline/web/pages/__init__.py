"""The pages: HTML for people over the same functions and permissions as the API. Knows its routers;
knows no data.
"""

from fastapi import APIRouter, Request
from starlette.responses import RedirectResponse, Response

from rlhf_pipeline.errors import PipelineError
from rlhf_pipeline.web.auth import Principal
from rlhf_pipeline.web.dependencies import cached_principal, find_principal
from rlhf_pipeline.web.pages import (
    annotate,
    audit,
    calibration,
    comparisons,
    consensus,
    feedback,
    guidelines,
    me,
    progress,
    quality,
    rules,
    session,
    users,
    votes,
)
from rlhf_pipeline.web.pages.rendering import render
from rlhf_pipeline.web.pages.session import login_path
from rlhf_pipeline.web.problems import Problem
from rlhf_pipeline.web.site import Site

NOUNS = (
    session,
    annotate,
    progress,
    votes,
    quality,
    comparisons,
    consensus,
    calibration,
    feedback,
    guidelines,
    rules,
    users,
    me,
    audit,
)

router = APIRouter()
for noun in NOUNS:
    router.routes.extend(noun.router.routes)


async def problem_page(request: Request, problem: Problem) -> Response:
    """An error as a person reads it, with their menu; whoever is not logged in is led to the
    login.
    """
    if problem.status == 401:
        return RedirectResponse(login_path(request), 303)
    site: Site = request.app.state.site
    asker = await _find_principal(request, problem)
    back, words = (
        ("/", "To the start")
        if request.method == "GET"
        else (request.headers.get("referer") or "/", "Back")
    )
    if not back.startswith(f"{request.url.scheme}://{request.url.netloc}/"):
        back = "/"
    page = render(
        "problem.html",
        request,
        site,
        asker,
        status=problem.status,
        problem=problem.document(),
        back=back,
        back_words=words,
    )
    page.headers.update(problem.headers)
    return page


async def _find_principal(request: Request, problem: Problem) -> Principal | None:
    """The user who asks; after a server error only one who is remembered, since the store could
    raise the same error again.
    """
    if problem.status >= 500:
        return cached_principal(request)
    try:
        return await find_principal(request)
    except (Problem, PipelineError):
        return None

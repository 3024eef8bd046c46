"""Routes of guidelines: read versions, publish a new one."""

from typing import Annotated

from fastapi import APIRouter, Depends, Path, Query, Request, Response
from pydantic import Field

from rlhf_pipeline.core.api_types.base import Page, RequestBody
from rlhf_pipeline.core.errors import NotFound, OutdatedEdit
from rlhf_pipeline.core.records import Guideline, Text
from rlhf_pipeline.web.forms import Form, attempt, validate
from rlhf_pipeline.web.permissions import Permission, Principal
from rlhf_pipeline.web.problems import Problem
from rlhf_pipeline.web.rendering import names_for, render, see_other
from rlhf_pipeline.web.routing import (
    AnySite,
    IfMatch,
    api_router,
    etag_of,
    needs,
    problem_responses,
    require_version,
)
from rlhf_pipeline.web.site import Site

api = api_router("guidelines")
pages = APIRouter()
Version = Annotated[int, Path(ge=1, le=10**9)]
Editor = Annotated[Principal, Depends(needs(Permission.GUIDELINES_WRITE))]
Reader = Annotated[Principal, Depends(needs(Permission.GUIDELINES_READ))]


class NewGuideline(RequestBody):
    text: Annotated[Text, Field(min_length=1, max_length=100_000)]


@api.get("/guidelines")
def read_all(site: AnySite, _: Reader, response: Response) -> Page[Guideline]:
    """All versions, newest first. The ETag is that of the newest version, "0" before the first."""
    guidelines = site.store.guidelines.all()
    response.headers["ETag"] = etag_of(guidelines[0].version if guidelines else 0)
    return Page(items=guidelines, next=None)


@api.get("/guidelines/{version}")
def read(site: AnySite, _: Reader, response: Response, version: Version) -> Guideline:
    """One version."""
    response.headers["ETag"] = etag_of(version)
    return site.store.guidelines.get(version)


@api.post("/guidelines", status_code=201, responses=problem_responses(412, 428))
def add(
    site: AnySite,
    principal: Editor,
    response: Response,
    body: NewGuideline,
    if_match: IfMatch = None,
) -> Guideline:
    """Publish the next version. If-Match is the version it is based on ("0" for the first)."""
    guideline = _publish(site, principal, body, after=require_version(if_match))
    response.headers["ETag"] = etag_of(guideline.version)
    return guideline


def _publish(site: Site, principal: Principal, body: NewGuideline, *, after: int) -> Guideline:
    try:
        return site.store.guidelines.add(body.text, after=after, actor=principal.user_id)
    finally:
        site.terms.forget()


@pages.get("/guidelines")
def show_page(
    site: AnySite,
    request: Request,
    principal: Reader,
    version: Annotated[int | None, Query(ge=1, le=10**9)] = None,
) -> Response:
    return _render_page(site, request, principal, version=version)


@pages.post("/guidelines")
def submit_draft(site: AnySite, request: Request, principal: Editor, form: Form) -> Response:
    def publish() -> Guideline:
        body = validate(NewGuideline, {"text": form.text("text").strip()})
        return _publish(site, principal, body, after=form.number("after") or 0)

    _, problem = attempt(publish, OutdatedEdit)
    if problem is None:
        return see_other("/guidelines")
    return _render_page(site, request, principal, problem=problem, draft=form.text("text"))


def _render_page(
    site: Site,
    request: Request,
    principal: Principal,
    *,
    version: int | None = None,
    problem: Problem | None = None,
    draft: str = "",
) -> Response:
    versions = site.store.guidelines.all()
    guideline = versions[0] if versions else None
    if version is not None:
        guideline = next((item for item in versions if item.version == version), None)
        if guideline is None:
            raise NotFound(f"There is no version {version} of the guidelines.")
    return render(
        "guidelines/page.html",
        request,
        site,
        principal,
        status=problem.status if problem else 200,
        guideline=guideline,
        versions=versions,
        newest=versions[0].version if versions else 0,
        problem=problem.detail if problem else None,
        draft=draft,
        names=names_for(site, principal),
    )

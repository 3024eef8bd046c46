"""Guidelines as a page: the newest, all versions, a new one. Knows versions; who read which is kept
with each vote.
"""

from typing import Annotated

from fastapi import APIRouter, Depends, Query, Request, Response

from rlhf_pipeline.api_types.project import NewGuideline
from rlhf_pipeline.errors import NotFound, OutdatedEdit
from rlhf_pipeline.permissions import Permission
from rlhf_pipeline.web.auth import Principal
from rlhf_pipeline.web.dependencies import AnySite, needs
from rlhf_pipeline.web.pages.forms import Fields, Form, attempt, validate
from rlhf_pipeline.web.pages.rendering import names_for, render, see_other
from rlhf_pipeline.web.problems import Problem
from rlhf_pipeline.web.site import Site

router = APIRouter()
Reader = Annotated[Principal, Depends(needs(Permission.GUIDELINES_READ))]
Writer = Annotated[Principal, Depends(needs(Permission.GUIDELINES_WRITE))]


@router.get("/guidelines")
def read(
    site: AnySite,
    request: Request,
    principal: Reader,
    version: Annotated[int | None, Query(ge=1, le=10**9)] = None,
) -> Response:
    return _render_page(site, request, principal, version=version)


@router.post("/guidelines")
def add(site: AnySite, request: Request, principal: Writer, form: Form) -> Response:
    done, problem = attempt(lambda: _add_guideline(site, principal, form), OutdatedEdit)
    site.terms.forget()
    return (
        see_other("/guidelines")
        if done
        else _render_page(site, request, principal, problem=problem, draft=form.text("text"))
    )


def _add_guideline(site: Site, principal: Principal, form: Fields) -> bool:
    after = form.number("after") or 0
    text = validate(NewGuideline, {"text": form.text("text").strip()}).text
    site.store.guidelines.add(text, after=after, actor=principal.user_id)
    return True


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
    shown = versions[0] if versions else None
    if version is not None:
        shown = next((one for one in versions if one.version == version), None)
        if shown is None:
            raise NotFound(f"There is no version {version} of the guidelines.")
    return render(
        "guidelines.html",
        request,
        site,
        principal,
        status=problem.status if problem else 200,
        shown=shown,
        versions=versions,
        newest=versions[0].version if versions else 0,
        problem=problem.detail if problem else None,
        draft=draft,
        names=names_for(site, principal),
    )

"""Routes of settings: every setting and loop parameter with value and source, and their page."""

from fastapi import APIRouter, Request, Response
from pydantic import Field

from rlhf_pipeline.core.api_types.base import Answer
from rlhf_pipeline.core.errors import ConfigurationError
from rlhf_pipeline.improve.loop_settings import PARTS, LoopSettings
from rlhf_pipeline.web import glossary
from rlhf_pipeline.web.effective_settings import (
    EffectiveSetting,
    LoopParameter,
    list_parameters,
    list_settings,
)
from rlhf_pipeline.web.rendering import render
from rlhf_pipeline.web.routing import AnySite, SignedIn, api_router

api, pages = api_router("settings"), APIRouter()


class PartOut(Answer):
    """One part of the loop settings."""

    name: str
    parameters: tuple[LoopParameter, ...]


class SettingsOut(Answer):
    """Settings of the web app's process, and the loop settings that the next run uses."""

    file: str | None = Field(description="The settings file; null without one.")
    problem: str = Field(description="What is wrong with the file; empty if nothing is.")
    settings: tuple[EffectiveSetting, ...]
    parts: tuple[PartOut, ...] = Field(description="Empty while the file is invalid.")


@pages.get("/settings")
def show_page(site: AnySite, request: Request, principal: SignedIn) -> Response:
    return render("settings/page.html", request, site, principal, effective=read(site))


@pages.get("/settings/glossary")
def show_glossary(site: AnySite, request: Request, principal: SignedIn) -> Response:
    return render("settings/glossary.html", request, site, principal, labels=glossary.LABELS)


@api.get("/settings")
def read(site: AnySite) -> SettingsOut:
    """Settings of the web app's process with their sources, and the loop settings that the next
    run uses. Of secrets only whether they are set.
    """
    settings: tuple[EffectiveSetting, ...] = ()
    parts: tuple[PartOut, ...] = ()
    problem = ""
    try:
        settings = tuple(list_settings(site.settings))
        loop = LoopSettings.read(site.settings)
        parts = tuple(
            PartOut(name=name, parameters=tuple(list_parameters(loop, name))) for name in PARTS
        )
    except ConfigurationError as cause:
        problem = str(cause)
    return SettingsOut(
        file=str(site.settings.config) if site.settings.config else None,
        problem=problem,
        settings=settings,
        parts=parts,
    )

"""Routes of releases: list, deploy and roll back versions, answer requests, and the history."""

from collections.abc import Callable
from datetime import date, datetime, time
from typing import Annotated, TypeVar

from fastapi import APIRouter, Depends, Path, Query, Request, Response

from rlhf_pipeline.core.api_types.base import Page
from rlhf_pipeline.core.api_types.filters import Filter, ReleaseFilter
from rlhf_pipeline.core.errors import (
    ModelError,
    ModelHashMismatch,
    ModelNotFound,
    ModelRefused,
    ReleaseConflict,
)
from rlhf_pipeline.core.records import Promotion, Text
from rlhf_pipeline.core.releases import (
    Deployment,
    ReleaseAct,
    ReleasedModel,
    ReleaseEvent,
    find_deployed,
)
from rlhf_pipeline.improve.releases import Releases
from rlhf_pipeline.registry import KINDS
from rlhf_pipeline.reports.words import name_models
from rlhf_pipeline.web.decisions.answers import Justification
from rlhf_pipeline.web.forms import Form, attempt, validate
from rlhf_pipeline.web.lists import (
    FilterField,
    RowList,
    make_cursor,
    page_filter,
    parse_cursor,
    show_list,
)
from rlhf_pipeline.web.permissions import Permission, Principal, permissions_of
from rlhf_pipeline.web.problems import Problem
from rlhf_pipeline.web.rendering import names_for, see_other
from rlhf_pipeline.web.routing import AnySite, api_router, needs, problem_responses
from rlhf_pipeline.web.site import Site

models, api, pages = api_router("models", prefix="/api/models"), api_router("releases"), APIRouter()
Reader = Annotated[Principal, Depends(needs(Permission.METRICS_READ))]
Approver = Annotated[Principal, Depends(needs(Permission.MODELS_PROMOTE))]
ModelId = Annotated[Text, Path(max_length=200, description="A version, such as demo.policy@3.")]
Number = Annotated[int, Path(ge=1, le=10**9)]
T = TypeVar("T")


class RollBack(Justification):
    expected: int | None = None


class NewDeployment(RollBack):
    """`expected`: the version that it replaces; another one is a conflict. `overrides`: deploy a
    version that was refused.
    """

    overrides: bool = False


class NewApproval(Justification):
    """`checklist`: the lines that hold."""

    checklist: tuple[Annotated[Text, Path(max_length=300)], ...] = ()


class EventFilter(Filter):
    """Which releases: all, or what was deployed at the end of a day."""

    day: date | None = None


def open_releases(site: Site) -> Releases:
    return Releases(site.champions, site.settings)


def answer_refusals(act: Callable[[], T]) -> T:
    """The result of an act. Raises Problem 404 for an unknown version, 409 for a refusal."""
    try:
        return act()
    except (ModelRefused, ModelHashMismatch, ModelNotFound) as cause:
        is_missing = isinstance(cause, ModelNotFound)
        kind = "not_found" if is_missing else "not_promoted"
        raise Problem(404 if is_missing else 409, str(cause), kind=kind) from None


@models.get("")
def read_models(
    site: AnySite, _: Reader, filters: Annotated[ReleaseFilter, Query()]
) -> Page[ReleasedModel]:
    """Registered versions, newest first within a name. `status=testing` are the candidates."""
    state = "candidate" if filters.status == "testing" else filters.status
    place = parse_cursor(filters.cursor, str, int)
    listed = sorted(open_releases(site).list_models(), key=_place, reverse=True)
    items = [
        model
        for model in listed
        if state in (None, model.state)
        and filters.name in (None, model.name)
        and (place is None or _place(model) < place)
    ]
    is_more = len(items) > filters.limit
    page_items = items[: filters.limit]
    return Page(
        items=tuple(page_items), next=make_cursor(*_place(page_items[-1])) if is_more else None
    )


@models.post("/{model_id}/deploy", responses=problem_responses(404, 409))
def deploy(
    site: AnySite, principal: Approver, model_id: ModelId, body: NewDeployment
) -> Deployment:
    """Deploy a version; where the project asks for approval, request it."""
    result = answer_refusals(
        lambda: open_releases(site).deploy(
            model_id,
            reason=body.reason,
            actor=principal.user_id,
            is_forced=body.overrides,
            expected=body.expected,
        )
    )
    if isinstance(result, ReleaseAct):
        return Deployment(request=result)
    return Deployment(promotion=result)


@models.post("/{model_id}/rollback", responses=problem_responses(404, 409))
def roll_back(site: AnySite, principal: Approver, model_id: ModelId, body: RollBack) -> Promotion:
    """Deploy the version that was deployed before. The address names the model, or the version
    that is deployed now; another one is a conflict.
    """
    releases, (name, at, _) = open_releases(site), model_id.partition("@")

    def act() -> Promotion:
        expected = releases.champions.find(model_id)[1].version if at else body.expected
        return releases.roll_back(
            name, reason=body.reason, actor=principal.user_id, expected=expected
        )

    return answer_refusals(act)


@api.get("/releases")
def read_events(
    site: AnySite, _: Reader, filters: Annotated[EventFilter, Query()]
) -> Page[ReleaseEvent]:
    """Deployments, roll backs, requests, answers and archived versions, newest first; with `day`
    what was deployed at the end of that day.
    """
    events = open_releases(site).list_events()
    if filters.day is not None:
        zone = site.store.database.clock.now().tzinfo
        end = datetime.combine(filters.day, time.max, zone)
        events = find_deployed(events, end)
    place = parse_cursor(filters.cursor, int)
    first = len(events) if place is None else place[0]
    start = max(first - filters.limit, 0)
    page_items = tuple(reversed(events[start : max(first, 0)]))
    return Page(items=page_items, next=make_cursor(start) if start else None)


@api.post("/releases/{request_id}:approve", responses=problem_responses(404, 409))
def approve(site: AnySite, principal: Approver, request_id: Number, body: NewApproval) -> Promotion:
    """Approve a request as its second person, with the lines of the checklist that hold."""
    return answer_refusals(
        lambda: open_releases(site).approve(
            request_id, reason=body.reason, actor=principal.user_id, ticked=body.checklist
        )
    )


@api.post("/releases/{request_id}:reject", responses=problem_responses(404, 409))
def reject(
    site: AnySite, principal: Approver, request_id: Number, body: Justification
) -> ReleaseAct:
    """Reject a request."""
    return open_releases(site).reject(request_id, reason=body.reason, actor=principal.user_id)


def _place(model: ReleasedModel) -> tuple[str, int]:
    return model.name, model.version


def _describe(site: Site, principal: Principal, _: Page[ReleaseEvent]) -> dict[str, object]:
    """What waits, and what each name would roll back to."""
    releases = open_releases(site)
    names = {  # who answers for a release is named to all who may read of it
        user.user_id: user.name
        for user in site.store.users.all()
        if user.name != user.email and Permission.MODELS_PROMOTE in permissions_of(user.roles)
    }
    return {
        "waiting": [(act, releases.find_authors(act)) for act in releases.list_waiting()],
        "deployed": [
            (champion, releases.find_target(champion.model_name))
            for kind in KINDS
            if (champion := site.store.promotions.champion(f"{site.settings.project}.{kind}"))
        ],
        "check": releases.find_served_check(),
        "names": names | names_for(site, principal),
    }


RELEASES = RowList(
    "Releases",
    "/releases",
    "releases/page.html",
    ReleaseEvent,
    key="at",
    read=read_events,
    fields=lambda *_: [FilterField("day", "Deployed on", kind="day")],
    describe=_describe,
)
Shown = Annotated[EventFilter, page_filter(EventFilter)]


@pages.get("/releases")
def show_page(site: AnySite, request: Request, principal: Reader, filters: Shown) -> Response:
    return show_list(RELEASES, request, site, principal, filters)


@pages.post("/releases")
def submit(site: AnySite, request: Request, principal: Approver, form: Form) -> Response:
    """What the button of the form names, for the request or the version that it is about."""
    key = form.text("key")
    values: dict[str, object] = {"reason": form.text("reason").strip()}
    number = form.number("key") if key.isdecimal() else 0
    acts: dict[str, Callable[[], object]] = {
        "approve": lambda: approve(
            site,
            principal,
            number or 0,
            validate(NewApproval, values | {"checklist": form.all("checklist")}),
        ),
        "reject": lambda: reject(site, principal, number or 0, validate(Justification, values)),
        "roll back": lambda: roll_back(site, principal, key, validate(RollBack, values)),
        "archive": lambda: _archive(site, principal, key, validate(Justification, values)),
        "restore": lambda: _archive(
            site, principal, key, validate(Justification, values), is_restored=True
        ),
    }
    act = form.text("act")
    if act not in acts:
        raise Problem(422, f"act is {act!r}; use a button of the page.", kind="invalid")
    result, problem = attempt(acts[act], ReleaseConflict, ModelError)
    if problem is not None:
        return show_list(RELEASES, request, site, principal, EventFilter(), problem=problem)
    label = name_models(result.label, is_first=True) if hasattr(result, "label") else ""
    words = {"approve": "is deployed", "reject": "is rejected", "roll back": "is deployed again"}
    return see_other("/releases", notice=f"{label} {words.get(act, act + 'd')}.")


def _archive(
    site: Site, principal: Principal, label: str, body: Justification, *, is_restored: bool = False
) -> ReleaseAct:
    return answer_refusals(
        lambda: open_releases(site).archive(
            label, reason=body.reason, actor=principal.user_id, is_restored=is_restored
        )
    )

"""The page of alerts: alerts, silences, messages that were given up, rules and targets."""

from collections.abc import Callable
from datetime import timedelta
from typing import Annotated, Literal

from fastapi import APIRouter, Query, Request, Response

from rlhf_pipeline.alerts.rounds import read_plan
from rlhf_pipeline.api_types.filters import AlertFilter, AlertMessageFilter
from rlhf_pipeline.errors import AlertState
from rlhf_pipeline.monitoring import AlertState as State
from rlhf_pipeline.permissions import Permission, Principal
from rlhf_pipeline.web.alerts import routes
from rlhf_pipeline.web.alerts.routes import (
    Editor,
    NewSilence,
    Number,
    Reader,
    ShortText,
    TestMessageOut,
)
from rlhf_pipeline.web.forms import Fields, Form, attempt, validate
from rlhf_pipeline.web.lists import Cursor
from rlhf_pipeline.web.problems import Problem
from rlhf_pipeline.web.rendering import names_for, query_of, render, see_other
from rlhf_pipeline.web.routing import AnySite
from rlhf_pipeline.web.site import Site

pages = APIRouter()
Shown = Annotated[Literal["", "open", "acknowledged", "resolved"], Query(alias="state")]
VIEWS: dict[str, tuple[str, list[State]]] = {
    "": ("not resolved", ["open", "acknowledged"]),
    "open": ("open", ["open"]),
    "acknowledged": ("acknowledged", ["acknowledged"]),
    "resolved": ("resolved", ["resolved"]),
}
HOURS = {1: "1 hour", 8: "8 hours", 24: "1 day", 168: "1 week"}


@pages.get("/alerts")
def show_page(
    site: AnySite, request: Request, principal: Reader, shown: Shown = "", cursor: Cursor = None
) -> Response:
    return _render_page(site, request, principal, shown=shown, cursor=cursor)


@pages.post("/alerts/{alert_id}/acknowledge")
def submit_acknowledgement(
    site: AnySite, request: Request, principal: Editor, alert_id: Number, shown: Shown = ""
) -> Response:
    return _submit(
        site, request, principal, shown, lambda: routes.acknowledge(site, principal, alert_id)
    )


@pages.post("/alerts/{alert_id}/resolve")
def submit_resolution(
    site: AnySite, request: Request, principal: Editor, alert_id: Number, shown: Shown = ""
) -> Response:
    return _submit(
        site, request, principal, shown, lambda: routes.resolve(site, principal, alert_id)
    )


@pages.post("/alerts/silences")
def submit_silence(
    site: AnySite, request: Request, principal: Editor, form: Form, shown: Shown = ""
) -> Response:
    return _submit(
        site,
        request,
        principal,
        shown,
        lambda: routes.add_silence(site, principal, _parse_silence(site, form)),
    )


@pages.post("/alerts/silences/{silence_id}/end")
def submit_end(
    site: AnySite, request: Request, principal: Editor, silence_id: Number, shown: Shown = ""
) -> Response:
    return _submit(
        site, request, principal, shown, lambda: routes.end_silence(site, principal, silence_id)
    )


@pages.post("/alerts/messages/{message_id}/replay")
def submit_replay(
    site: AnySite, request: Request, principal: Editor, message_id: ShortText, shown: Shown = ""
) -> Response:
    return _submit(
        site, request, principal, shown, lambda: routes.replay(site, principal, message_id)
    )


@pages.post("/alerts/targets/{target}/test")
def submit_test(
    site: AnySite, request: Request, principal: Editor, target: ShortText, shown: Shown = ""
) -> Response:
    result, problem = attempt(lambda: routes.send_test(site, principal, target))
    return _render_page(site, request, principal, problem, shown=shown, test=result)


def _submit(
    site: Site, request: Request, principal: Principal, shown: str, act: Callable[[], object]
) -> Response:
    """Act, and show the list that the form was on, or the problem above it."""
    _, problem = attempt(act, AlertState)
    if problem:
        return _render_page(site, request, principal, problem, shown=shown)
    return see_other(f"/alerts?state={shown}" if shown else "/alerts")


def _parse_silence(site: Site, form: Fields) -> NewSilence:
    hours = form.number("hours")
    if hours not in HOURS:
        raise Problem(
            422,
            f"hours is {hours}; choose one of {', '.join(map(str, HOURS))}.",
            kind="invalid",
            errors=[("hours", "is not a choice of the form")],
        )
    return validate(
        NewSilence,
        {
            "rule": form.text("rule") or None,
            "subject": form.text("subject") or None,
            "reason": form.text("reason").strip(),
            "ends_at": site.store.database.clock.now() + timedelta(hours=hours),
        },
    )


def _render_page(
    site: Site,
    request: Request,
    principal: Principal,
    problem: Problem | None = None,
    *,
    shown: str = "",
    cursor: str | None = None,
    test: TestMessageOut | None = None,
) -> Response:
    may_read = principal.may(Permission.ALERTS_READ)
    now, plan = site.store.database.clock.now(), read_plan(site.settings)
    states = {"state": VIEWS[shown][1]}
    found = routes.read_all(site, AlertFilter(**states, cursor=cursor)) if may_read else None
    return render(
        "alerts/page.html",
        request,
        site,
        principal,
        status=problem.status if problem else 200,
        problem=problem.detail if problem else None,
        page=found or {"items": [], "next": None},
        now=now,
        n_open=site.store.alerts.count_open(),
        n_critical=sum(
            alert.severity == "critical"
            for alert in (site.store.alerts.page(AlertFilter(limit=200)) if may_read else ())
        ),
        views={name: words for name, (words, _) in VIEWS.items()},
        shown=shown,
        query=query_of({"state": shown}),
        plan=plan,
        silences=[one for one in site.store.silences.all() if one.ends_at > now],
        dead=site.store.alert_messages.page(AlertMessageFilter(state="dead")) if may_read else [],
        targets=plan.targets,
        test=test,
        hours=HOURS,
        daemon=site.readiness.find_daemon_status(),
        names=names_for(site, principal),
    )

"""Routes of alerts: read and close them, replay messages, test targets."""

from collections.abc import Callable
from typing import Annotated, Literal

from fastapi import APIRouter, Depends, Path, Query, Request, Response
from pydantic import Field

from rlhf_pipeline.core.api_types.base import Answer, Page
from rlhf_pipeline.core.api_types.filters import AlertFilter, AlertMessageFilter, Filter, Value
from rlhf_pipeline.core.errors import AlertState, ConfigurationError, DeliveryFailed
from rlhf_pipeline.core.monitoring import Alert, AlertMessage
from rlhf_pipeline.watch.alerts import incidents
from rlhf_pipeline.watch.alerts.channels import find_targets, send
from rlhf_pipeline.watch.alerts.messages import build_test_message
from rlhf_pipeline.watch.alerts.rounds import read_plan
from rlhf_pipeline.watch.alerts.rules import AlertRule
from rlhf_pipeline.web.forms import Form, attempt
from rlhf_pipeline.web.lists import (
    FilterField,
    ListPage,
    RowList,
    as_choices,
    make_cursor,
    page_filter,
    parse_cursor,
    render_list,
    send_csv,
    wants_csv,
)
from rlhf_pipeline.web.permissions import Permission, Principal
from rlhf_pipeline.web.problems import Problem
from rlhf_pipeline.web.rendering import names_for, query_of, see_other
from rlhf_pipeline.web.routing import AnySite, SignedIn, api_router, needs, problem_responses
from rlhf_pipeline.web.site import Site

api, pages = api_router("alerts"), APIRouter()
Editor = Annotated[Principal, Depends(needs(Permission.ALERTS_WRITE))]
Number = Annotated[int, Path(ge=1, le=10**9)]
ShortText = Annotated[str, Path(max_length=200)]
Asked = Annotated[AlertFilter, Query()]
ALERTS = RowList("Alerts", "/alerts", "alerts/page.html", Alert, key="alert_id")


class AlertPageFilter(Filter):
    """Which alerts the page shows: open and acknowledged ones, or those of one state."""

    state: Literal["open", "acknowledged", "resolved"] | None = None
    rule: Value = None


class TestMessageOut(Answer):
    """Result of a test message."""

    message_id: str
    is_delivered: bool
    detail: str = Field(description="What the receiver accepted, or why it did not.")


@api.get("/alerts/rules")
def read_rules(site: AnySite) -> Page[AlertRule]:
    """All rules as they are now: the defaults, changed by rlhf.yaml."""
    rules = read_plan(site.settings).rules.values()
    return Page(items=tuple(rules), next=None)


@api.get("/alerts/messages")
def read_messages(
    site: AnySite, filters: Annotated[AlertMessageFilter, Query()]
) -> Page[AlertMessage]:
    """The newest messages about alerts with their payloads and attempts, newest first."""
    return Page(items=tuple(site.store.alert_messages.page(filters)), next=None)


@api.post("/alerts/messages/{message_id}:replay", responses=problem_responses(404))
def replay(site: AnySite, principal: Editor, message_id: ShortText) -> AlertMessage:
    """Send a dead message again, from its first attempt. It leaves with the next tick."""
    now = site.store.database.clock.now()
    return site.store.alert_messages.replay(message_id, now, actor=principal.user_id)


@api.post("/alerts/targets/{target}:test", responses=problem_responses(404))
def send_test(site: AnySite, principal: Editor, target: ShortText) -> TestMessageOut:
    """Send a test message to a configured target now; the answer says what happened."""
    targets = find_targets(site.settings)
    if target not in targets:
        raise Problem(404, f"There is no target {target!r} in alert_targets.", kind="not_found")
    now, plan = site.store.database.clock.now(), read_plan(site.settings)
    message = build_test_message(target, now, project=plan.project, web_url=plan.web_url)
    is_delivered = True
    try:
        detail = send(site.settings, targets[target], message, now)
    except (DeliveryFailed, ConfigurationError) as failure:
        is_delivered, detail = False, str(failure)
    return TestMessageOut(message_id=message.message_id, is_delivered=is_delivered, detail=detail)


@api.get("/alerts")
def read_all(site: AnySite, filters: Asked) -> Page[Alert]:
    """Alerts, newest first."""
    place = parse_cursor(filters.cursor, int)
    alerts = site.store.alerts.page(filters, before_id=place[0] if place else None)
    after = make_cursor(alerts[-1].alert_id) if len(alerts) == filters.limit else None
    return Page(items=tuple(alerts), next=after)


@api.post("/alerts/{alert_id}:acknowledge", responses=problem_responses(404, 409))
def acknowledge(site: AnySite, principal: Editor, alert_id: Number) -> Alert:
    """Acknowledge an open alert: no more reminders, no escalation."""
    now, actor = site.store.database.clock.now(), principal.user_id
    return site.store.alerts.change(
        alert_id,
        lambda alert: incidents.acknowledge(alert, actor, now),
        actor=actor,
        action="acknowledge",
    )


@api.post("/alerts/{alert_id}:resolve", responses=problem_responses(404, 409))
def resolve(site: AnySite, principal: Editor, alert_id: Number) -> Alert:
    """Resolve an alert by hand; it reopens only after its condition has ended once."""
    now, actor, plan = site.store.database.clock.now(), principal.user_id, read_plan(site.settings)
    return site.store.alerts.change(
        alert_id,
        lambda alert: incidents.resolve(alert, actor, now),
        actor=actor,
        action="resolve",
        tell=lambda alert: plan.build(alert, "resolved", alert.targets, now),
    )


Shown = Annotated[AlertPageFilter, page_filter(AlertPageFilter)]


@pages.get("/alerts")
def show_page(site: AnySite, request: Request, principal: SignedIn, filters: Shown) -> Response:
    if wants_csv(request):
        return send_csv(ALERTS, filters, lambda part: _read_alerts(site, part))
    return _render_page(site, request, principal, filters)


@pages.post("/alerts", dependencies=[Depends(needs(Permission.ALERTS_READ))])
def submit(
    site: AnySite, request: Request, principal: Editor, filters: Shown, form: Form
) -> Response:
    """What the button of the form names, for what the form is about."""
    key, number = form.text("key"), form.number("key") if form.text("key").isdigit() else None
    acts: dict[str, Callable[[], object]] = {
        "acknowledge": lambda: acknowledge(site, principal, number or 0),
        "resolve": lambda: resolve(site, principal, number or 0),
        "send again": lambda: replay(site, principal, key),
        "test": lambda: send_test(site, principal, key),
    }
    act = form.text("act")
    if act not in acts:
        raise Problem(422, f"act is {act!r}; use a button of the page.", kind="invalid")
    result, problem = attempt(acts[act], AlertState)
    if problem is None and not isinstance(result, TestMessageOut):
        return see_other(f"/alerts?{query_of(filters.here)}".rstrip("?&"))
    return _render_page(site, request, principal, filters, problem, opened=key, test=result)


def _read_alerts(site: Site, filters: AlertPageFilter) -> Page[Alert]:
    only = AlertFilter(rule=filters.rule, cursor=filters.cursor, limit=filters.limit)
    if filters.state is not None:
        only = only.model_copy(update={"state": [filters.state]})
    return read_all(site, only)


def _render_page(
    site: Site,
    request: Request,
    principal: Principal,
    filters: AlertPageFilter,
    problem: Problem | None = None,
    *,
    opened: str = "",
    test: object = None,
) -> Response:
    now, plan = site.store.database.clock.now(), read_plan(site.settings)
    states = {"": "not resolved"} | as_choices(("open", "acknowledged", "resolved"))
    fields = [
        FilterField("state", "State", choices=states),
        FilterField("rule", "Rule", choices=as_choices(plan.rules)),
    ]
    page = _read_alerts(site, filters)
    return render_list(
        ALERTS,
        request,
        site,
        principal,
        ListPage(filters, page, fields, problem=problem, opened=opened),
        now=now,
        n_open=site.store.alerts.count_open(),
        n_critical=sum(
            alert.severity == "critical"
            for alert in site.store.alerts.page(AlertFilter(state=["open"], limit=200))
        ),
        plan=plan,
        dead=site.store.alert_messages.page(AlertMessageFilter(state="dead")),
        test=test,
        daemon=site.readiness.find_daemon_status(),
        names=names_for(site, principal),
    )

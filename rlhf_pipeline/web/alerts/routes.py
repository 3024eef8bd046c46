"""Routes of alerts: read and close them, silence what is known, replay messages, test targets."""

from typing import Annotated

from fastapi import Depends, Path, Query
from pydantic import AwareDatetime, Field

from rlhf_pipeline.alerts import incidents
from rlhf_pipeline.alerts.channels import find_targets, send
from rlhf_pipeline.alerts.messages import build_test_message
from rlhf_pipeline.alerts.rounds import read_plan
from rlhf_pipeline.alerts.rules import AlertRule
from rlhf_pipeline.api_types.base import Answer, Name, Page, RequestBody
from rlhf_pipeline.api_types.filters import AlertFilter, AlertMessageFilter
from rlhf_pipeline.errors import ConfigurationError, DeliveryFailed
from rlhf_pipeline.monitoring import Alert, AlertMessage, Silence
from rlhf_pipeline.parameters import suggest
from rlhf_pipeline.permissions import Permission, Principal
from rlhf_pipeline.records import Text
from rlhf_pipeline.web.lists import make_cursor, parse_cursor
from rlhf_pipeline.web.problems import Problem
from rlhf_pipeline.web.routing import AnySite, api_router, needs, problem_responses

api = api_router("alerts")
READER = [Depends(needs(Permission.ALERTS_READ))]
Reader = Annotated[Principal, Depends(needs(Permission.ALERTS_READ))]
Editor = Annotated[Principal, Depends(needs(Permission.ALERTS_WRITE))]
Number = Annotated[int, Path(ge=1, le=10**9)]
ShortText = Annotated[str, Path(max_length=200)]
Asked = Annotated[AlertFilter, Query()]


class NewSilence(RequestBody):
    """Keeps alerts from being sent until `ends_at`; they are recorded."""

    rule: Name | None = Field(default=None, description="Only alerts of this rule.")
    subject: Name | None = Field(default=None, description="Only alerts of this subject.")
    reason: Annotated[Text, Field(min_length=1, max_length=1000)]
    ends_at: AwareDatetime


class TestMessageOut(Answer):
    """Result of a test message."""

    message_id: str
    is_delivered: bool
    detail: str = Field(description="What the receiver accepted, or why it did not.")


@api.get("/alerts/rules", dependencies=READER)
def read_rules(site: AnySite) -> Page[AlertRule]:
    """All rules as they are now: the defaults, changed by rlhf.yaml."""
    rules = read_plan(site.settings).rules.values()
    return Page(items=tuple(rules), next=None)


@api.get("/alerts/silences", dependencies=READER)
def read_silences(site: AnySite) -> Page[Silence]:
    """All silences, newest first, those that ended among them."""
    return Page(items=tuple(site.store.silences.all()), next=None)


@api.post("/alerts/silences", status_code=201, responses=problem_responses(404, 409))
def add_silence(site: AnySite, principal: Editor, body: NewSilence) -> Silence:
    """Silence a rule, a subject or all alerts until a time."""
    rules = read_plan(site.settings).rules
    if body.rule is not None and body.rule not in rules:
        hint = suggest(body.rule, rules)
        raise Problem(404, f"There is no rule {body.rule!r}. {hint}", kind="not_found")
    return site.store.silences.add(**body.model_dump(), actor=principal.user_id)


@api.delete("/alerts/silences/{silence_id}", status_code=204, responses=problem_responses(404, 409))
def end_silence(site: AnySite, principal: Editor, silence_id: Number) -> None:
    """End a silence now."""
    site.store.silences.end(silence_id, actor=principal.user_id)


@api.get("/alerts/messages", dependencies=READER)
def read_messages(
    site: AnySite, asked: Annotated[AlertMessageFilter, Query()]
) -> Page[AlertMessage]:
    """The newest messages about alerts with their payloads and attempts, newest first."""
    return Page(items=tuple(site.store.alert_messages.page(asked)), next=None)


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


@api.get("/alerts", dependencies=READER)
def read_all(site: AnySite, asked: Asked) -> Page[Alert]:
    """Alerts, newest first."""
    place = parse_cursor(asked.cursor, int)
    found = site.store.alerts.page(asked, before_id=place[0] if place else None)
    after = make_cursor(found[-1].alert_id) if len(found) == asked.limit else None
    return Page(items=tuple(found), next=after)


@api.get("/alerts/{alert_id}", dependencies=READER, responses=problem_responses(404))
def read(site: AnySite, alert_id: Number) -> Alert:
    """One alert with its evidence."""
    return site.store.alerts.get(alert_id)


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

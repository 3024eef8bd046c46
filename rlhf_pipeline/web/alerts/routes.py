"""Routes of alerts: read and close them, silence what is known, replay messages, test targets."""

from datetime import datetime
from typing import Annotated

from fastapi import Depends, Path, Query

from rlhf_pipeline.alerts.channels import channels_of
from rlhf_pipeline.alerts.delivery import send_within
from rlhf_pipeline.alerts.messages import build_test_message
from rlhf_pipeline.alerts.rounds import AlertPlan, acknowledge_alert, resolve_alert
from rlhf_pipeline.api_types.alerts import AlertRuleOut, NewSilence, TestMessageOut
from rlhf_pipeline.api_types.base import LARGEST, Page
from rlhf_pipeline.errors import ConfigurationError, DeliveryFailed, StoreError
from rlhf_pipeline.monitoring import Alert, AlertMessage, AlertState, MessageState, Silence
from rlhf_pipeline.parameters import suggest
from rlhf_pipeline.permissions import Permission
from rlhf_pipeline.web.auth import Principal
from rlhf_pipeline.web.blindness import needs_all_votes
from rlhf_pipeline.web.dependencies import AnySite
from rlhf_pipeline.web.pagination import Cursor, Limit, cursor_problem, make_cursor, parse_cursor
from rlhf_pipeline.web.problems import Problem
from rlhf_pipeline.web.routing import api_router, problem_responses

api = api_router("alerts")
# A drift alert tells how people voted, so who may vote does not read it.
READER = [Depends(needs_all_votes(Permission.ALERTS_READ, "alerts"))]
Reader = Annotated[Principal, Depends(needs_all_votes(Permission.ALERTS_READ, "alerts"))]
Editor = Annotated[Principal, Depends(needs_all_votes(Permission.ALERTS_WRITE, "alerts"))]
Number = Annotated[int, Path(ge=1, le=10**9)]
ShortText = Annotated[str, Path(max_length=200)]
States = Annotated[
    list[AlertState] | None, Query(max_length=4, description="Default: open and acknowledged.")
]
RuleQuery = Annotated[str | None, Query(max_length=60, description="Only alerts of this rule.")]
TEST_S = 10.0


@api.get("/alerts/rules", dependencies=READER)
def read_rules(site: AnySite) -> Page[AlertRuleOut]:
    """All rules as they are now: the defaults, changed by rlhf.yaml."""
    rules = AlertPlan.read(site.settings).rules.values()
    items = tuple(AlertRuleOut.model_validate(rule.model_dump()) for rule in rules)
    return Page(items=items, next=None)


@api.get("/alerts/silences", dependencies=READER)
def read_silences(site: AnySite) -> Page[Silence]:
    """All silences, newest first, those that ended among them."""
    return Page(items=tuple(site.store.silences.all()), next=None)


@api.post("/alerts/silences", status_code=201, responses=problem_responses(404, 409))
def add_silence(site: AnySite, principal: Editor, body: NewSilence) -> Silence:
    """Silence a rule, a subject or all alerts until a time."""
    rules = AlertPlan.read(site.settings).rules
    if body.rule is not None and body.rule not in rules:
        hint = suggest(body.rule, rules)
        raise Problem(404, f"There is no rule {body.rule!r}. {hint}", kind="not_found")
    try:
        return site.store.silences.add(**body.model_dump(), actor=principal.user_id)
    except StoreError as refusal:
        raise _conflict(refusal) from None


@api.delete("/alerts/silences/{silence_id}", status_code=204, responses=problem_responses(404, 409))
def end_silence(site: AnySite, principal: Editor, silence_id: Number) -> None:
    """End a silence now."""
    try:
        site.store.silences.end(silence_id, actor=principal.user_id)
    except StoreError as refusal:
        raise _conflict(refusal) from None


@api.get("/alerts/messages", dependencies=READER)
def read_messages(
    site: AnySite,
    state: MessageState | None = None,
    alert_id: Annotated[int | None, Query(ge=1, le=LARGEST)] = None,
    cursor: Cursor = None,
    limit: Limit = 50,
) -> Page[AlertMessage]:
    """Messages about alerts with their payloads and attempts, newest first."""
    place = parse_cursor(cursor, str, str)
    try:
        before = None if place is None else (datetime.fromisoformat(place[0]), place[1])
        if before is not None and before[0].tzinfo is None:
            raise ValueError
    except ValueError:
        raise cursor_problem() from None
    found = site.store.alert_messages.page(
        state=state, alert_id=alert_id, before=before, limit=limit
    )
    last = found[-1] if len(found) == limit else None
    after = make_cursor(last.created_at.isoformat(), last.message_id) if last else None
    return Page(items=tuple(found), next=after)


@api.post("/alerts/messages/{message_id}:replay", responses=problem_responses(404))
def replay(site: AnySite, principal: Editor, message_id: ShortText) -> AlertMessage:
    """Send a dead message again, from its first attempt. It leaves with the next tick."""
    now = site.store.database.clock.now()
    return site.store.alert_messages.replay(message_id, now, actor=principal.user_id)


@api.post("/alerts/targets/{target}:test", responses=problem_responses(404))
def send_test(site: AnySite, principal: Editor, target: ShortText) -> TestMessageOut:
    """Send a test message to a configured target now; the answer says what happened."""
    channels = channels_of(site.settings)
    if target not in channels:
        raise Problem(404, f"There is no target {target!r} in alert_targets.", kind="not_found")
    now, link = site.store.database.clock.now(), site.settings.web_url
    message = build_test_message(target, project=site.settings.project, link=link, now=now)
    is_delivered = True
    try:
        detail = send_within(channels[target], message, now, TEST_S)
    except (DeliveryFailed, ConfigurationError) as failure:
        is_delivered, detail = False, str(failure)
    return TestMessageOut(message_id=message.message_id, is_delivered=is_delivered, detail=detail)


@api.get("/alerts", dependencies=READER)
def read_all(
    site: AnySite,
    state: States = None,
    rule: RuleQuery = None,
    cursor: Cursor = None,
    limit: Limit = 50,
) -> Page[Alert]:
    """Alerts, newest first."""
    place = parse_cursor(cursor, int)
    found = site.store.alerts.page(
        states=state or ["open", "acknowledged"],
        rule=rule,
        before_id=place[0] if place else None,
        limit=limit,
    )
    after = make_cursor(found[-1].alert_id) if len(found) == limit else None
    return Page(items=tuple(found), next=after)


@api.get("/alerts/{alert_id}", dependencies=READER, responses=problem_responses(404))
def read(site: AnySite, alert_id: Number) -> Alert:
    """One alert with its evidence."""
    return site.store.alerts.get(alert_id)


@api.post("/alerts/{alert_id}:acknowledge", responses=problem_responses(404, 409))
def acknowledge(site: AnySite, principal: Editor, alert_id: Number) -> Alert:
    """Acknowledge an open alert: no more reminders, no escalation."""
    try:
        return acknowledge_alert(site.store, alert_id, principal.user_id)
    except StoreError as refusal:
        raise _conflict(refusal) from None


@api.post("/alerts/{alert_id}:resolve", responses=problem_responses(404, 409))
def resolve(site: AnySite, principal: Editor, alert_id: Number) -> Alert:
    """Resolve an alert by hand; it reopens only after its condition has ended once."""
    try:
        return resolve_alert(site.store, site.settings, alert_id, principal.user_id)
    except StoreError as refusal:
        raise _conflict(refusal) from None


def _conflict(refusal: StoreError) -> Exception:
    """Problem 409 for a refusal by the state of the alert or silence; other errors as they are."""
    is_refusal = type(refusal) is StoreError and refusal.__cause__ is None
    return Problem(409, str(refusal), kind="alert_state") if is_refusal else refusal

"""Routes of alerts: read and close them, change rules, silence what is known."""

from typing import Annotated

from fastapi import Depends, Path, Query

from rlhf_pipeline.alert_rounds import (
    AlertPlan,
    acknowledge_alert,
    change_rule,
    require_rule,
    resolve_alert,
)
from rlhf_pipeline.alerts.rules import AlertRule, RuleChange, RuleName
from rlhf_pipeline.api_types.alerts import AlertOut, AlertRuleOut, NewSilence, SilenceOut
from rlhf_pipeline.api_types.base import Page
from rlhf_pipeline.errors import StoreError
from rlhf_pipeline.monitoring import Alert, AlertState, Silence
from rlhf_pipeline.permissions import Permission
from rlhf_pipeline.store.alert_rules import AlertRuleChange
from rlhf_pipeline.web.auth import Principal
from rlhf_pipeline.web.blindness import needs_all_votes
from rlhf_pipeline.web.dependencies import AnySite
from rlhf_pipeline.web.idempotency import runs_once
from rlhf_pipeline.web.pagination import Cursor, Limit, make_cursor, parse_cursor
from rlhf_pipeline.web.problems import Problem
from rlhf_pipeline.web.routing import api_router, problem_responses
from rlhf_pipeline.web.site import Site

api = api_router("alerts")
# A drift alert tells how people voted, so who may vote does not read it.
READER = [Depends(needs_all_votes(Permission.ALERTS_READ, "alerts"))]
Reader = Annotated[Principal, Depends(needs_all_votes(Permission.ALERTS_READ, "alerts"))]
Editor = Annotated[Principal, Depends(needs_all_votes(Permission.ALERTS_WRITE, "alerts"))]
Number = Annotated[int, Path(ge=1, le=10**9)]
RulePath = Annotated[RuleName, Path()]
States = Annotated[
    list[AlertState] | None, Query(max_length=4, description="Default: open and acknowledged.")
]
RuleQuery = Annotated[str | None, Query(max_length=60, description="Only alerts of this rule.")]


@api.get("/alerts/rules", dependencies=READER)
def read_rules(site: AnySite) -> Page[AlertRuleOut]:
    """All rules as they are now: the defaults, changed by rlhf.yaml, commands and the API."""
    changes = {change.rule: change for change in site.store.alert_rules.all()}
    plan = AlertPlan.read(site.settings, site.store)
    items = tuple(
        _describe_rule(rule, changes.get(name), plan.ignored.get(name))
        for name, rule in plan.rules.items()
    )
    return Page(items=items, next=None)


@api.put("/alerts/rules/{rule}")
def put_rule(site: AnySite, principal: Editor, rule: RulePath, body: RuleChange) -> AlertRuleOut:
    """Set a rule, or add one with `reads` and `threshold`. Fields left out are those of rlhf.yaml
    or the default. Takes effect at the next tick."""
    changed = change_rule(site.store, site.settings, rule, body, actor=principal.user_id)
    return _describe_rule(changed, _find_change(site, rule))


@api.delete("/alerts/rules/{rule}", status_code=204, responses=problem_responses(404))
def reset_rule(site: AnySite, principal: Editor, rule: RulePath) -> None:
    """Return to what rlhf.yaml or the default sets."""
    site.store.alert_rules.delete(rule, actor=principal.user_id)


@api.get("/alerts/silences", dependencies=READER)
def read_silences(site: AnySite) -> Page[SilenceOut]:
    """All silences, newest first, those that ended among them."""
    return Page(items=tuple(map(_describe_silence, site.store.silences.all())), next=None)


@api.post("/alerts/silences", status_code=201, responses=problem_responses(404, 409))
@runs_once()
def add_silence(site: AnySite, principal: Editor, body: NewSilence) -> SilenceOut:
    """Silence a rule, a subject or all alerts until a time."""
    if body.rule is not None:
        require_rule(site.store, site.settings, body.rule)
    try:
        added = site.store.silences.add(
            rule=body.rule,
            subject=body.subject,
            reason=body.reason,
            ends_at=body.ends_at,
            actor=principal.user_id,
        )
    except StoreError as refusal:
        raise _conflict(refusal) from None
    return _describe_silence(added)


@api.delete("/alerts/silences/{silence_id}", status_code=204, responses=problem_responses(404, 409))
def end_silence(site: AnySite, principal: Editor, silence_id: Number) -> None:
    """End a silence now."""
    try:
        site.store.silences.end(silence_id, actor=principal.user_id)
    except StoreError as refusal:
        raise _conflict(refusal) from None


@api.get("/alerts", dependencies=READER)
def read_all(
    site: AnySite,
    state: States = None,
    rule: RuleQuery = None,
    cursor: Cursor = None,
    limit: Limit = 50,
) -> Page[AlertOut]:
    """Alerts, newest first."""
    place = parse_cursor(cursor, int)
    found = site.store.alerts.page(
        states=state or ["open", "acknowledged"],
        rule=rule,
        before_id=place[0] if place else None,
        limit=limit,
    )
    after = make_cursor(found[-1].alert_id) if len(found) == limit else None
    return Page(items=tuple(map(_describe, found)), next=after)


@api.get("/alerts/{alert_id}", dependencies=READER, responses=problem_responses(404))
def read(site: AnySite, alert_id: Number) -> AlertOut:
    """One alert with its evidence."""
    return _describe(site.store.alerts.get(alert_id))


@api.post("/alerts/{alert_id}:acknowledge", responses=problem_responses(404, 409))
@runs_once()
def acknowledge(site: AnySite, principal: Editor, alert_id: Number) -> AlertOut:
    """Acknowledge an open alert: no more reminders, no escalation."""
    try:
        return _describe(acknowledge_alert(site.store, alert_id, principal.user_id))
    except StoreError as refusal:
        raise _conflict(refusal) from None


@api.post("/alerts/{alert_id}:resolve", responses=problem_responses(404, 409))
@runs_once()
def resolve(site: AnySite, principal: Editor, alert_id: Number) -> AlertOut:
    """Resolve an alert by hand; it reopens only after its condition has ended once."""
    try:
        return _describe(resolve_alert(site.store, site.settings, alert_id, principal.user_id))
    except StoreError as refusal:
        raise _conflict(refusal) from None


def _conflict(refusal: StoreError) -> Exception:
    """Problem 409 for a refusal by the state of the alert or silence; other errors as they are."""
    is_refusal = type(refusal) is StoreError and refusal.__cause__ is None
    return Problem(409, str(refusal), kind="alert_state") if is_refusal else refusal


def _find_change(site: Site, rule: str) -> AlertRuleChange | None:
    return next((each for each in site.store.alert_rules.all() if each.rule == rule), None)


def _describe(alert: Alert) -> AlertOut:
    return AlertOut.model_validate(alert.model_dump())


def _describe_silence(silence: Silence) -> SilenceOut:
    return SilenceOut.model_validate(silence.model_dump())


def _describe_rule(
    rule: AlertRule, change: AlertRuleChange | None, ignored_change: str | None = None
) -> AlertRuleOut:
    return AlertRuleOut.model_validate(
        rule.model_dump()
        | {
            "changed_by": change.changed_by if change else None,
            "changed_at": change.changed_at if change else None,
            "ignored_change": ignored_change,
        }
    )

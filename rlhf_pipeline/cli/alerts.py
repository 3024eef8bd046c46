"""`rlhf alerts`: incidents, rules, silences and messages."""

from datetime import timedelta
from typing import Annotated, cast

import typer

from rlhf_pipeline.alert_rounds import (
    AlertPlan,
    acknowledge_alert,
    change_rule,
    gather_readings,
    read_budget,
    read_settings_problem,
    read_silence,
    require_rule,
    resolve_alert,
)
from rlhf_pipeline.alerts.findings import evaluate
from rlhf_pipeline.alerts.rules import AlertRule, RuleChange
from rlhf_pipeline.cli.alert_messages import list_messages, replay_messages, send_test_message
from rlhf_pipeline.cli.context import Workspace
from rlhf_pipeline.cli.tables import echo, show, show_json
from rlhf_pipeline.monitoring import SEVERITIES, Alert, AlertState
from rlhf_pipeline.parameters import parse_parameters
from rlhf_pipeline.records import utc_now
from rlhf_pipeline.store.alert_rules import AlertRuleChange

app = typer.Typer(
    help="Alerts: incidents, and the messages about them.",
    no_args_is_help=True,
)
app.command("messages")(list_messages)
app.command("replay")(replay_messages)
app.command("test")(send_test_message)
ACTOR = "rlhf alerts"
STATES = ("pending", "open", "acknowledged", "resolved")
AlertId = Annotated[int, typer.Argument(min=1, help="Number in `rlhf alerts list`.")]
RuleArgument = Annotated[str, typer.Argument(help="Name in `rlhf alerts rules`.")]
AsJson = Annotated[bool, typer.Option("--json", help="Print JSON.")]


@app.callback()
def group() -> None:
    """Alerts: incidents, and the messages about them."""


@app.command("list")
def list_alerts(
    state: Annotated[
        str | None,
        typer.Option(help=f"{', '.join(STATES)}. Default: open and acknowledged."),
    ] = None,
    rule: Annotated[str | None, typer.Option(help="Only alerts of this rule.")] = None,
    limit: Annotated[int, typer.Option(min=1, help="Maximum number of alerts, newest first.")] = 50,
    as_json: AsJson = False,
) -> None:
    """List alerts, newest first."""
    if state is not None and state not in STATES:
        raise typer.BadParameter(f"one of {', '.join(STATES)}", param_hint="--state")
    wanted = (state,) if state else ("open", "acknowledged")
    found = Workspace.open_current().store.alerts.page(
        states=cast(tuple[AlertState, ...], wanted), rule=rule, limit=limit
    )
    if as_json:
        show_json([alert.model_dump(mode="json") for alert in found])
        return
    show(
        [_build_row(alert) for alert in found],
        title=f"{len(found)} alert{'s' * (len(found) != 1)}, newest first",
        empty="No alert is open." if state is None else f"No alert is {state}.",
    )


@app.command("show")
def show_alert(alert_id: AlertId, as_json: AsJson = False) -> None:
    """Show one alert with its evidence and its messages."""
    store = Workspace.open_current().store
    alert = store.alerts.get(alert_id)
    messages = store.alert_messages.page(alert_id=alert_id, limit=1000)
    if as_json:
        sent = [message.model_dump(mode="json", exclude={"payload"}) for message in messages]
        show_json({**alert.model_dump(mode="json"), "messages": sent})
        return
    echo(alert.title)
    for name, value in alert.model_dump(mode="json", exclude={"title", "evidence"}).items():
        if value not in (None, "", []):
            echo(f"  {name.replace('_', ' ')}: {value}")
    for name, value in alert.evidence.items():
        echo(f"  {name.replace('_', ' ')}: {value}")
    for message in reversed(messages):
        echo(f"  {message.created_at:%Y-%m-%d %H:%M} {message.kind} to {message.target}: "
             f"{message.state}")  # fmt: skip


@app.command("ack")
def acknowledge(alert_id: AlertId) -> None:
    """Acknowledge an alert: no more reminders, no escalation."""
    alert = acknowledge_alert(Workspace.open_current().store, alert_id, ACTOR)
    echo(f"alert {alert_id} is acknowledged: {alert.title}")


@app.command("resolve")
def resolve(alert_id: AlertId) -> None:
    """Resolve an alert by hand; it reopens only after its condition has ended once."""
    workspace = Workspace.open_current()
    alert = resolve_alert(workspace.store, workspace.settings, alert_id, ACTOR)
    echo(f"alert {alert_id} is resolved: {alert.title}")


@app.command("silence")
def silence(
    reason: Annotated[str, typer.Option(help="Why; recorded with the silence.")],
    hours: Annotated[float, typer.Option(min=0.01, max=8760, help="Hours until it ends.")],
    rule: Annotated[str | None, typer.Option(help="Only alerts of this rule.")] = None,
    subject: Annotated[str | None, typer.Option(help="Only alerts of this subject.")] = None,
) -> None:
    """Suppress messages for some hours; alerts are still recorded."""
    workspace = Workspace.open_current()
    store = workspace.store
    if not reason.strip():
        raise typer.BadParameter("give a reason", param_hint="--reason")
    if rule is not None:
        require_rule(store, workspace.settings, rule)
    added = store.silences.add(
        rule=rule,
        subject=subject,
        reason=reason,
        ends_at=store.database.clock.now() + timedelta(hours=hours),
        actor=ACTOR,
    )
    echo(f"silence {added.silence_id} until {added.ends_at:%Y-%m-%d %H:%M} UTC")


@app.command("silences")
def list_silences(as_json: AsJson = False) -> None:
    """List silences, newest first, including those that have ended."""
    found = Workspace.open_current().store.silences.all()
    if as_json:
        show_json([each.model_dump(mode="json") for each in found])
        return
    show(
        [
            {
                "silence": str(each.silence_id),
                "rule": each.rule or "all",
                "subject": each.subject or "all",
                "until": f"{each.ends_at:%Y-%m-%d %H:%M}",
                "reason": each.reason,
                "by": each.created_by,
            }
            for each in found
        ],
        title=f"{len(found)} silence{'s' * (len(found) != 1)}, all times in UTC",
        empty="No silences.",
    )


@app.command("unsilence")
def unsilence(
    silence_id: Annotated[int, typer.Argument(min=1, help="Number in `rlhf alerts silences`.")],
) -> None:
    """End a silence now."""
    Workspace.open_current().store.silences.end(silence_id, actor=ACTOR)
    echo(f"silence {silence_id} has ended")


@app.command("rules")
def list_rules(as_json: AsJson = False) -> None:
    """List the current rules: the defaults with the changes of rlhf.yaml, commands and the API."""
    workspace = Workspace.open_current()
    plan = AlertPlan.read(workspace.settings, workspace.store)
    changes = {change.rule: change for change in workspace.store.alert_rules.all()}
    for problem in filter(None, [plan.problem, *plan.ignored.values()]):
        echo(problem, err=True)
    if as_json:
        show_json(
            [
                rule.model_dump(mode="json") | {"ignored_change": plan.ignored.get(rule.name)}
                for rule in plan.rules.values()
            ]
        )
        return
    show(
        [
            {
                "rule": rule.name if rule.is_on else f"{rule.name} (off)",
                "reads": rule.reads,
                "fires when": _describe_condition(rule),
                "within days": str(rule.within_days),
                "severity": rule.severity,
                "set by": _describe_author(plan, rule.name, changes.get(rule.name)),
            }
            for rule in plan.rules.values()
        ],
        title=f"{len(plan.rules)} rules",
        empty="",
    )


@app.command("set")
def set_rule(
    rule: RuleArgument,
    threshold: Annotated[float | None, typer.Option(help="Value beyond which it fires.")] = None,
    resolve_at: Annotated[
        float | None, typer.Option(help="Value at which its alerts resolve.")
    ] = None,
    severity: Annotated[str | None, typer.Option(help=f"{', '.join(SEVERITIES)}.")] = None,
    is_on: Annotated[bool | None, typer.Option("--on/--off", help="Switch it on or off.")] = None,
    for_minutes: Annotated[
        float | None, typer.Option(help="Minutes the condition must last.")
    ] = None,
    for_days: Annotated[
        int | None, typer.Option(help="Measured days in a row that must violate it.")
    ] = None,
    reads: Annotated[str | None, typer.Option(help="Metric that a new rule reads.")] = None,
    comparison: Annotated[str | None, typer.Option(help="above or below.")] = None,
    title: Annotated[str | None, typer.Option(help="Title of its alerts.")] = None,
    as_default: Annotated[
        bool, typer.Option("--default", help="Drop all changes made by commands and the API.")
    ] = False,
) -> None:
    """Change a rule, or add one with --reads and --threshold. Takes effect at the next tick."""
    workspace = Workspace.open_current()
    store = workspace.store
    if as_default:
        store.alert_rules.delete(rule, actor=ACTOR)
        echo(f"{rule}: changes dropped; rlhf.yaml or the default applies")
        return
    given = {
        "threshold": threshold,
        "resolve_at": resolve_at,
        "severity": severity,
        "is_on": is_on,
        "for_minutes": for_minutes,
        "for_days": for_days,
        "reads": reads,
        "comparison": comparison,
        "title": title,
    }
    earlier = next((change.given for change in store.alert_rules.all() if change.rule == rule), {})
    wanted = {name: value for name, value in given.items() if value is not None}
    if not wanted:
        raise typer.BadParameter("give at least one option, such as --threshold")
    change = parse_parameters(RuleChange, None, **earlier | wanted)
    changed = change_rule(store, workspace.settings, rule, change, actor=ACTOR)
    state = "" if changed.is_on else ", off"
    echo(f"{rule}: {changed.reads} {changed.comparison} {changed.threshold:g}, "
         f"{changed.severity}{state}")  # fmt: skip


@app.command("check")
def check() -> None:
    """Compare the stored figures with the current rules and print those that fire; exit with 1 if
    any does. No alert is opened or sent.

    Facts that only Dagster has, such as failed runs, are checked by the daemon and `rlhf loop`.
    """
    workspace = Workspace.open_current()
    now = utc_now()
    budget = read_budget(workspace.settings)  # refuses an invalid rlhf.yaml
    plan = AlertPlan.read(workspace.settings, workspace.store)
    readings = [
        *gather_readings(workspace.store, workspace.settings, plan, now, budget=budget),
        *read_silence(workspace.store, workspace.settings, now),
        read_settings_problem(plan.problem, now),
    ]
    found = evaluate(plan.rules.values(), readings, now)
    broken = [finding for finding in found if finding.status == "broken"]
    n = f"{len(found)} figure{'s' * (len(found) != 1)}"
    show(
        [{"rule": f.rule.name, "severity": f.rule.severity, "what": f.title} for f in broken],
        title=f"{len(broken)} of {n} violate{'s' * (len(broken) == 1)} a rule",
        empty=f"{n} compared; none violates a rule.",
    )
    raise typer.Exit(1 if broken else 0)


def _describe_condition(rule: AlertRule) -> str:
    """Such as `above 50 for 60 minutes`."""
    days = f" on {rule.for_days} days" if rule.for_days > 1 else ""
    minutes = f" for {rule.for_minutes:g} minutes" if rule.for_minutes else ""
    end = "" if rule.resolve_at is None else f", until {rule.resolve_at:g}"
    return f"{rule.comparison} {rule.threshold:g}{days}{minutes}{end}"


def _describe_author(plan: AlertPlan, rule: str, change: AlertRuleChange | None) -> str:
    origin = "rlhf.yaml" if rule in plan.in_file else "default"
    if change is None:
        return origin
    if rule in plan.ignored:
        return f"{origin}; {change.changed_by} (ignored)"
    return change.changed_by


def _build_row(alert: Alert) -> dict[str, str]:
    return {
        "alert": str(alert.alert_id),
        "since": f"{alert.opened_at:%Y-%m-%d %H:%M}",
        "severity": alert.severity,
        "state": alert.state,
        "rule": alert.rule,
        "what": alert.title,
    }

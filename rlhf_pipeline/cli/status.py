"""`rlhf status`: where each stage stands and what comes next."""

import math
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta

from rlhf_pipeline.cli.context import Workspace
from rlhf_pipeline.cli.tables import echo, show
from rlhf_pipeline.core.artefacts import STAGES
from rlhf_pipeline.core.config import Settings
from rlhf_pipeline.feedback.votes.teaching import find_active_quarantines
from rlhf_pipeline.improve.gate_sessions import find_running
from rlhf_pipeline.improve.loop_settings import LoopSettings
from rlhf_pipeline.improve.retraining.answers import find_waiting
from rlhf_pipeline.improve.retraining.messages import describe_action
from rlhf_pipeline.improve.retraining.triggers import TriggerParams
from rlhf_pipeline.improve.reward_training import NextFit, find_reason_to_wait, plan_next_fit
from rlhf_pipeline.reports.words import format_count
from rlhf_pipeline.store import Store, migrations
from rlhf_pipeline.store.decisions import OPEN_STATES
from rlhf_pipeline.watch.drift.confirmation import describe_requirement


def status() -> None:
    """Show the last run of each stage, what the project waits for, and what comes next."""
    workspace = Workspace.open()
    settings, store = workspace.settings, workspace.store
    loop = LoopSettings.read(settings)  # refuse an invalid file before anything is printed
    now = datetime.now(UTC)
    today = now.date().isoformat()
    show(
        [_stage_row(workspace, stage) for stage in STAGES],
        title=f"project {settings.project} in {settings.home}",
        empty="",
    )
    lines = [
        ("store", describe_tables(store)),
        ("champion", describe_champions(settings, store)),
        ("collection", describe_collection(loop, workspace.files.days("comparisons"), today)),
        ("votes", describe_votes(settings, store, today)),
        (
            "learning",
            describe_learning(
                plan_next_fit(settings, store),
                store,
                find_reason_to_wait(settings, store, loop.trigger, now=now),
            ),
        ),
        ("retraining", "; ".join(describe_retraining(store, loop.trigger))),
    ]
    for name, line in lines:
        echo(f"{name:<11} {line}")


def _stage_row(workspace: Workspace, stage: str) -> dict[str, str]:
    run = next(iter(workspace.registry.latest_runs(1, stage=stage)), None)
    if run is None:
        return {"stage": stage, "last run": "-", "day": "-", "status": "never ran", "numbers": ""}
    return {
        "stage": stage,
        "last run": f"{run.started_at:%Y-%m-%d %H:%M}",
        "day": run.tags.get("dagster.partition", "-"),
        "status": run.status.lower(),
        "numbers": ", ".join(
            f"{name} {value:.4g}" for name, value in list(run.metrics.items())[:3]
        ),
    }


def describe_tables(store: Store) -> str:
    """The version of the tables, and the copies that upgrades made of the store."""
    copies = ", ".join(f"{copy}" for copy in migrations.list_copies(store.database))
    version = f"tables of schema {migrations.read_version(store.database)}"
    if not copies:
        return version
    return f"{version}; copies from before upgrades, to be removed when all is well: {copies}"


def describe_champions(settings: Settings, store: Store) -> str:
    promotions = [
        store.promotions.champion(name)
        for name in (f"{settings.project}.policy", settings.reward_model)
    ]
    policy, reward_model = (promotion.label if promotion else None for promotion in promotions)
    return f"policy {policy or 'none yet'}, reward model {reward_model or 'none yet'}"


def describe_collection(loop: LoopSettings, days: list[str], today: str) -> str:
    at = loop.schedules.collection
    if today in days:
        return f"today ({today}) is collected; tomorrow's is due at {at} UTC"
    last = f"last collected {days[-1]}; " if days else "nothing collected yet; "
    is_late = datetime.now(UTC).strftime("%H:%M") >= at
    cure = "`rlhf run collection`, or the job collection in Dagster"
    return f"{last}today's {'was' if is_late else 'is'} due at {at} UTC: {cure}"


def describe_votes(settings: Settings, store: Store, today: str) -> str:
    touched = store.votes.touched_days()
    n_today = sum(t.n_new for t in touched if str(t.day) == today)
    work, waiting = store.cards.remaining_work(), store.replays.pending_days()
    replay = f"; imported days that wait for `rlhf replay`: {len(waiting)}" if waiting else ""
    return (
        f"{sum(t.n_new for t in touched):,} in all and {n_today:,} today, skips included; "
        f"{work.n_open:,} judgements wait for people; a day's feedback runs after "
        f"{settings.votes_per_request:,} new votes or {settings.quiet_minutes:g} min without one"
        f"{replay}"
    )


def describe_learning(due: NextFit, store: Store, wait: str | None = None) -> str:
    """How many voted comparisons the next fit needs, and about how many days that takes, or why it
    waits although it is due.
    """
    if due.shortage is None:
        why = due.cause or f"{due.n:,} voted comparisons, {due.needed:,} needed"
        return f"due: {why}" + (f"; {wait}" if wait else "")
    n_days = len(store.votes.touched_days(due.data_seq))
    if not due.n or not n_days:
        return due.shortage
    days_left = math.ceil((due.needed - due.n) / (due.n / n_days))
    return f"{due.shortage}: about {format_count(days_left, 'more day')} of votes"


def describe_retraining(store: Store, trigger: TriggerParams) -> Iterator[str]:
    """Events that wait, what holds the next retraining back, the last decision and gate."""
    decisions, gates = store.decisions.all(), store.gates.all()
    n_events = len(store.events.find_open())
    needed = f"reported by {describe_requirement(trigger)}"
    if trigger.calibration_days:
        needed += f", or calibration fails on {trigger.calibration_days} days of a week"
    events = (
        format_count(n_events, "open drift or calibration event") if n_events else "no open event"
    )
    yield f"{events}; fires when {needed}"
    fires = [
        decision for decision in decisions if decision.action == "fire" and decision.actor is None
    ]
    if fires:
        over = fires[-1].decided_at + timedelta(hours=trigger.cool_down_hours)
        if over > datetime.now(UTC):
            yield f"cool-down until {over:%Y-%m-%d %H:%M} UTC"
    for decision in find_waiting(decisions):
        yield (
            f"decision {decision.decision_id} waits for a person ({decision.remedy}): "
            f"`rlhf triggers answer {decision.decision_id} retrain --reason WHY`, or `nothing`"
        )
    for decision in find_active_quarantines(decisions):
        assert decision.quarantine is not None
        yield (
            f"decision {decision.decision_id} leaves out votes of "
            f"{format_count(len(decision.quarantine.annotator_ids), 'annotator')} from vote "
            f"{decision.quarantine.from_seq:,} on; its page undoes it"
        )
    for decision in decisions:
        if decision.order is not None and decision.state in OPEN_STATES:
            yield (
                f"training job {decision.decision_id} by {decision.order.strategy} is open: "
                f"`rlhf policy status {decision.decision_id}`"
            )
    if decisions:
        last = decisions[-1]
        yield (
            f"decision {last.decision_id} of {last.decided_at:%Y-%m-%d}: "
            f"{describe_action(last)}, {', '.join(last.reasons)}"
        )
    if (asking := find_running(store)) is not None:
        yield f"the gate asks people about {asking.candidate}: {asking.describe()}"
    if gates:
        yield f"{gates[-1].candidate} {gates[-1].verdict} on {gates[-1].decided_at:%Y-%m-%d}"

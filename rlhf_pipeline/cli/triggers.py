"""`rlhf triggers`: lists, explains and answers decisions of the retraining trigger."""

import json
from collections.abc import Iterator
from datetime import UTC, datetime
from typing import Annotated

import typer

from rlhf_pipeline.cli.context import Workspace
from rlhf_pipeline.cli.parameters import DayRange, FirstDay, LastDay, require_text
from rlhf_pipeline.cli.tables import echo, show, show_json
from rlhf_pipeline.core.errors import ConfigurationError, NotFound
from rlhf_pipeline.core.intervals import format_estimate
from rlhf_pipeline.core.records import LARGEST, Interval, TriggerDecision
from rlhf_pipeline.improve.retraining import answers
from rlhf_pipeline.improve.retraining.answers import Answer
from rlhf_pipeline.improve.retraining.explanation import (
    Inputs,
    check_conditions,
    list_events,
    other_evidence,
    read_inputs,
)
from rlhf_pipeline.improve.retraining.messages import (
    CAUSES,
    describe_decision,
    describe_figures,
    describe_state,
    known_seq,
    read_causes,
    summarise_decision,
)
from rlhf_pipeline.reports.words import format_count
from rlhf_pipeline.store import Store

app = typer.Typer(help="Decisions to retrain, and what led to each.", no_args_is_help=True)
NO_DECISION = "No retraining was decided on yet: no detector has reported a change."
ACTOR = "rlhf triggers"
DecisionId = Annotated[
    int,
    typer.Argument(min=1, max=LARGEST, metavar="DECISION", help="Number in `rlhf triggers list`."),
]
Reason = Annotated[str, typer.Option(help="Why; kept with the decision.", callback=require_text)]


@app.command("list")
def list_decisions(
    first: FirstDay = None,
    last: LastDay = None,
    as_json: Annotated[
        bool, typer.Option("--json", help="Print the decisions with their evidence as JSON.")
    ] = False,
) -> None:
    """List every decision to retrain or to hold, oldest first: when, why, its run, and who."""
    day_range, store = DayRange(first, last), Workspace.open().store
    decisions = [d for d in store.decisions.all() if d.decided_at.date().isoformat() in day_range]
    answered = store.decisions.find_answers()
    if as_json:
        show_json([decision.model_dump(mode="json") for decision in decisions])
    else:
        show(
            [_build_row(decision, answered.get(decision.stored_id)) for decision in decisions],
            title=f"{format_count(len(decisions), 'decision')}, all times in UTC",
            empty=NO_DECISION if day_range.is_open else "No decision in these days.",
        )


@app.command("explain")
def explain(
    decision: Annotated[
        str, typer.Argument(metavar="[ID|latest]", help="Number in `rlhf triggers list`.")
    ] = "latest",
) -> None:
    """Show why a decision fired or held: each condition with its threshold and the number at the
    time, and the events.
    """
    store = Workspace.open().store
    stored_decision = _find_decision(store, decision)
    if stored_decision is None:
        echo(NO_DECISION)
        return
    answered_by = store.decisions.find_answers().get(stored_decision.stored_id)
    echo(
        f"{describe_decision(stored_decision)}: {summarise_decision(stored_decision, answered_by)}"
    )
    for reason in stored_decision.reasons:
        echo(f"  {reason}")
    if stored_decision.actor is not None:
        echo("A person decided it, so no condition of the trigger applied.")
    else:
        _show_inputs(stored_decision)
    if causes := read_causes(stored_decision):
        echo(
            f"Errors beyond those expected: {_points(causes.rise)} points, measured on "
            f"{format_count(causes.n_before, 'vote')} before the change and {causes.n_after:,} "
            "after it."
        )
        show(
            [
                {
                    "cause": CAUSES[cause.name],
                    "probability": format_estimate(cause.probability),
                    "added errors, points": _points(cause.effect) if cause.probability else "-",
                }
                for cause in causes.causes
            ],
            title="causes",
            empty="",
        )
    if quarantine := stored_decision.quarantine:
        echo(f"named: {', '.join(quarantine.annotator_ids)}, from vote {quarantine.from_seq:,} on")
    for name, value in other_evidence(stored_decision).items():
        echo(f"{name.replace('_', ' ')}: {value if isinstance(value, str) else json.dumps(value)}")


@app.command("answer")
def answer(
    decision: DecisionId,
    chosen: Annotated[
        Answer,
        typer.Argument(
            metavar="quarantine|retrain|nothing",
            help="quarantine: leave out the votes of the annotators that it names. retrain: count "
            "them, and retrain. nothing: neither.",
        ),
    ],
    reason: Reason,
) -> None:
    """Answer a decision that waits for a person: about careless annotators, newcomers with another
    taste, or a cause that is not clear.

    Of two tastes, `quarantine` keeps the old one and `retrain` takes both.
    """
    stored_answer = Workspace.open().store.decisions.answer(
        decision,
        lambda open_decision, seq: answers.answer(
            open_decision, chosen, reason=reason, actor=ACTOR, now=datetime.now(UTC), max_seq=seq
        ),
    )
    number, quarantine = stored_answer.decision_id, stored_answer.quarantine
    if stored_answer.action == "hold":
        echo(f"decision {number}: nothing is done about the change")
    elif quarantine is None:
        echo(f"decision {number}: the retraining sensor starts the retraining")
    else:
        echo(
            f"decision {number}: votes of {', '.join(quarantine.annotator_ids)} from vote "
            f"{quarantine.from_seq:,} on are left out; the retraining sensor makes pairs and drift "
            "reports anew"
        )


def _points(change: Interval) -> str:
    """In points, as on the page; plus 0, as a small loss would be rounded to -0."""
    value, low, high = (round(100 * part) + 0 for part in (change.value, change.low, change.high))
    return f"{value:+d} ({low:+d} to {high:+d})"


def _build_row(decision: TriggerDecision, answered_by: int | None) -> dict[str, str]:
    seq = known_seq(decision)
    return {
        "decision": str(decision.decision_id),
        "decided": f"{decision.decided_at:%Y-%m-%d %H:%M}",
        "vote": "-" if seq is None else f"{seq:,}",
        "action": decision.action,
        "state": describe_state(decision, answered_by),
        "remedy": decision.remedy or "-",
        "reasons": "; ".join(decision.reasons),
        "events": str(len(decision.event_ids)),
        "change at vote": "-" if decision.change_seq is None else f"{decision.change_seq:,}",
        "run": "-" if decision.run_id is None else decision.run_id[:8],
        "by": decision.actor or "trigger",
    }


def _find_decision(store: Store, decision_id: str) -> TriggerDecision | None:
    """None if there is no decision at all. Raises NotFound, naming the ids, for an unknown one."""
    decisions = {str(d.decision_id): d for d in store.decisions.all()}
    if decision_id != "latest" and decision_id not in decisions:
        hint = f"The ids go from 1 to {len(decisions)}." if decisions else "There is none yet."
        raise NotFound(f"No decision {decision_id!r}. {hint}")
    return (
        decisions[decision_id]
        if decision_id != "latest"
        else next(reversed(decisions.values()), None)
    )


def _show_inputs(decision: TriggerDecision) -> None:
    try:
        inputs = read_inputs(decision)
    except ConfigurationError as cause:
        echo(cause)
        return
    show(
        [
            {
                "condition": condition.name,
                "required": condition.required,
                "found": condition.actual,
                "met": {True: "yes", False: "no", None: "-"}[condition.is_met],
            }
            for condition in check_conditions(inputs)
        ],
        title=f"conditions at vote {inputs.evidence.max_seq:,}",
        empty="",
    )
    show(list(_build_events(inputs)), title="events it saw", empty="It saw no event.")


def _build_events(inputs: Inputs) -> Iterator[dict[str, str]]:
    for event, role in list_events(inputs):
        yield {
            "day": event.day.isoformat(),
            "vote": f"{event.seq:,}",
            "detector": event.detector,
            "model": event.model_version,
            "change dated at vote": "-" if event.change_seq is None else f"{event.change_seq:,}",
            "role": role,
            "figures": describe_figures(event),
        }

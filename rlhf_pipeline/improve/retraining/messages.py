"""Describes decisions in words, as the command line and the web app show them."""

from collections.abc import Mapping

from rlhf_pipeline.core.intervals import format_estimate
from rlhf_pipeline.core.records import (
    CauseName,
    ChangeCauses,
    DriftEvent,
    Remedy,
    TriggerDecision,
)
from rlhf_pipeline.improve.retraining.answers import waits

WAITING = "waits for a person"
CAUSES: dict[CauseName, str] = {
    "taste": "a change in everybody's taste",
    "category": "a change in one category",
    "newcomers": "newcomers with another taste",
    "carelessness": "careless annotators",
    "mix": "a changed mix of votes",
    "calibration": "stated confidence that no longer fits",
    "nothing": "chance",
}
# of a remedy: what runs, and what has been done once it succeeded
TASKS: dict[Remedy | None, tuple[str, str]] = {
    None: ("retraining", "retrained"),
    "retrain": ("retraining", "retrained"),
    "retrain_category": ("retraining", "retrained"),
    "reweight": ("retraining on all votes", "retrained on all votes"),
    "refit_calibrator": ("calibration", "calibrated again"),
    "quarantine": ("quarantine", "their votes are left out"),
    "lift_quarantine": ("end of the quarantine", "their votes count again"),
}


def describe_state(decision: TriggerDecision, answered_by: int | None = None) -> str:
    """The state of the decision; of one that is left to people, whether they have answered."""
    if not waits(decision):
        return decision.state
    return WAITING if answered_by is None else f"answered by decision {answered_by}"


def describe_decision(decision: TriggerDecision) -> str:
    verb = "fired" if decision.action == "fire" else "held"
    run = "" if decision.run_id is None else f", run {decision.run_id}"
    attempt = f", attempt {decision.attempt}" if decision.attempt > 1 else ""
    by = f" by {decision.actor}" if decision.actor else ""
    details = "" if decision.state == "held" else f" ({decision.state}{run}{attempt})"
    return (
        f"Decision {decision.decision_id} {verb}{by} on {decision.decided_at:%Y-%m-%d %H:%M} UTC"
        f"{details}"
    )


def describe_action(decision: TriggerDecision) -> str:
    """What the decision does, and the state of a fire: "hold", "fire (succeeded)"."""
    return decision.action if decision.state == "held" else f"{decision.action} ({decision.state})"


def summarise_decision(decision: TriggerDecision, answered_by: int | None = None) -> str:
    """One clause for the cause and one for what became of it: "a change in everybody's taste
    (probability 97%); retrained".
    """
    if decision.actor is not None:
        cause = "decided by a person"
    else:
        causes = read_causes(decision)
        if decision.remedy == "dismiss":
            cause = "a rise of errors that did not last"
        else:
            cause = "no confirmed change" if causes is None else describe_cause(causes)
    return f"{cause}; {_describe_outcome(decision, answered_by)}"


def describe_cause(causes: ChangeCauses) -> str:
    """The likeliest cause with its probability."""
    first = causes.causes[0]
    words = CAUSES[first.name]
    if first.name == "category":
        words = f"a change in category {first.evidence['category']}"
    words += f" (probability {format_estimate(first.probability)})"
    return words if first.probability >= 0.5 else f"no clear cause; the likeliest is {words}"


def read_causes(decision: TriggerDecision) -> ChangeCauses | None:
    """The causes that the trigger examined for this decision."""
    causes = decision.evidence.get("causes")
    return None if causes is None else ChangeCauses.model_validate(causes)


def describe_figures(event: DriftEvent) -> str:
    """The numbers of the event's evidence."""
    return ", ".join(f"{k} {v}" for k, v in format_figures(event.evidence).items()) or "-"


def format_figures(evidence: Mapping[str, object]) -> dict[str, str]:
    return {
        name: f"{value:,}" if isinstance(value, int) else f"{value:.4g}"
        for name, value in evidence.items()
        if isinstance(value, int | float)
    }


def _describe_outcome(decision: TriggerDecision, answered_by: int | None) -> str:
    if decision.action == "hold":
        if decision.remedy == "dismiss":
            return "dismissed as a false alarm"
        if waits(decision):
            return describe_state(decision, answered_by)
        return "nothing is done" if decision.actor is not None else "held"
    task, done = TASKS[decision.remedy]
    if decision.remedy == "retrain_category":
        done += f" for category {decision.evidence.get('category')}"
    return {
        "pending": f"{task} waits for its run",
        "submitted": f"{task} runs",
        "failed": f"{task} failed",
    }.get(decision.state, done)


def known_seq(decision: TriggerDecision) -> int | None:
    """The last vote that the decision knew; None if it does not say."""
    seq = decision.evidence.get("looked_at", {}).get("max_seq")
    return seq if isinstance(seq, int) else None

"""Says in one sentence what happened to taste, what the loop did and what it waits for."""

from collections.abc import Iterator, Sequence
from datetime import date
from typing import Literal

from rlhf_pipeline.core.records import CauseName, TriggerDecision
from rlhf_pipeline.improve.gate_sessions import find_running
from rlhf_pipeline.improve.retraining.messages import read_causes
from rlhf_pipeline.watch.alerts.changes import NOT_SERVED, SERVES_AGAIN, read_changes
from rlhf_pipeline.watch.alerts.readings import Reading
from rlhf_pipeline.web.decisions.answers import GateOut
from rlhf_pipeline.web.home.answers import Act, ChampionState, Headline
from rlhf_pipeline.web.permissions import Permission, Principal
from rlhf_pipeline.web.site import Site

# what happened; detectors estimate its day
EVENTS: dict[CauseName, str] = {
    "taste": "Taste changed around {day}.",
    "category": "Taste changed in {category} around {day}.",
    "newcomers": "Newcomers with another taste have voted since {day}.",
    "carelessness": "Some annotators have voted carelessly since {day}.",
    "mix": "The mix of votes changed around {day}.",
    "calibration": "Stated probabilities have not fitted the votes since {day}.",
    "nothing": "Errors have risen since {day}, perhaps by chance.",
}
NO_CHANGE = "No change of taste so far."
UNWATCHED = (
    "No change of taste since {day}. Of earlier votes it is unknown: no reward model predicted "
    "them."
)
NO_MODEL = (
    "Votes are being collected. The job `learning` fits the first reward model once there are "
    "enough."
)


def write_headline(
    site: Site, principal: Principal, champions: Sequence[ChampionState], gate: GateOut | None
) -> Headline:
    """The first change that still needs somebody, else a refused candidate, else the newest change
    and its answer.
    """
    decisions = site.store.decisions.all()
    by_id = {decision.stored_id: decision for decision in decisions}
    by_kind = {champion.kind: champion for champion in champions}
    changes = read_changes(
        decisions,
        champion=site.store.promotions.champion(site.settings.reward_model),
        policies=site.store.promotions.history(f"{site.settings.project}.policy"),
        gate=site.store.gates.latest(),
    )
    days = site.store.votes.days(
        decision.change_seq for decision in decisions if decision.change_seq is not None
    )

    def describe_event(reading: Reading) -> str:
        decision = by_id[_find_number(reading)]
        event_days = days.get(decision.change_seq or 0)
        return _describe_event(
            decision, event_days.cast if event_days else decision.decided_at.date()
        )

    waiting = [change for change in changes if change.value]
    asking = find_running(site.store)
    if asking is not None and all(change.progress == NOT_SERVED for change in waiting):
        event = f"{describe_event(waiting[-1])} " if waiting else ""
        number = _number(asking.candidate)
        return Headline(
            text=f"{event}Policy {number} waits for people: {asking.describe()}.",
            tone="warning" if asking.state == "held" else "info",
            acts=(Act(label=f"Votes on policy {number}", link="/evolution"),),
        )
    urgent = [change for change in waiting if change.progress in (NOT_SERVED, "waits for a person")]
    if waiting:
        reading = (urgent or waiting)[-1]
        others = len(waiting) - 1
        more = f" {others} more wait." if others else ""
        return Headline(
            text=f"{describe_event(reading)} {_describe_answer(reading, by_kind, gate)}{more}",
            tone="problem" if urgent or reading.progress == "its run failed" else "warning",
            acts=tuple(_list_acts(reading, principal, gate)),
        )
    is_left = any(
        decision.answers and gate and decision.decided_at > gate.decided_at
        for decision in decisions
    )
    if gate is not None and _is_refusal_of_now(gate, by_kind) and not is_left:
        return Headline(
            text=f"{_describe_refusal(gate)} Policy {_number(gate.champion)} serves on.",
            tone="warning",
            acts=tuple(_list_gate_acts(principal, gate)),
        )
    if changes:
        models = " and ".join(
            f"{champion.kind.replace('_', ' ')} {_number(champion.label)}" for champion in champions
        )
        end = changes[-1].loop_action
        answer = f"{models[:1].upper()}{models[1:]} follow it." if "serves now" in end else ""
        text = f"{describe_event(changes[-1])} {answer or end[:1].upper() + end[1:] + '.'}"
        return Headline(text=text, tone="warning" if SERVES_AGAIN in end else "good", acts=())
    if "reward_model" not in by_kind:
        return Headline(text=NO_MODEL, tone="info", acts=())
    return Headline(text=_describe_calm(site), tone="good", acts=())


def _describe_calm(site: Site) -> str:
    """No change, and since when one would have been noticed."""
    first = site.store.promotions.history(site.settings.reward_model)[0].data_seq
    day = site.store.votes.days([first]).get(first or 0)
    return NO_CHANGE if day is None else UNWATCHED.format(day=f"{day.cast:%-d %b}")


def _describe_event(decision: TriggerDecision, day: date) -> str:
    causes = read_causes(decision)
    if causes is None:
        return f"Detectors confirmed a change on {day:%-d %b}."
    if decision.remedy in (None, "dismiss"):  # the likeliest cause may be wrong, and name people
        return f"From {day:%-d %b} on errors rose above those stated."
    first = causes.causes[0]
    category = first.evidence.get("category") or "one category"
    return EVENTS[first.name].format(day=f"{day:%-d %b}", category=category)


def _describe_answer(
    reading: Reading,
    champions: dict[Literal["reward_model", "policy"], ChampionState],
    gate: GateOut | None,
) -> str:
    if reading.progress == NOT_SERVED:
        model = champions.get("reward_model")
        followed = f"Reward model {_number(model.label)} follows it. " if model else ""
        if gate is not None and gate.verdict == "not promoted":
            return f"{followed}The policy does not: {_describe_refusal(gate, is_clause=True)}"
        return (
            f"{followed}The policy does not follow it yet: rlhf policy train trains one on these "
            "votes."
        )
    return {
        "waits for a person": "The loop waits for your answer.",
        "not answered": "The loop waits for a clear cause.",
        "its run failed": "The run that answers it failed.",
    }.get(reading.progress, "The loop is answering it.")


def _describe_refusal(gate: GateOut, *, is_clause: bool = False) -> str:
    name = f"{'policy' if is_clause else 'Policy'} {_number(gate.candidate)}"
    return f"{name} was refused for {' and '.join(gate.refused_for) or 'an unknown reason'}."


def _list_acts(reading: Reading, principal: Principal, gate: GateOut | None) -> Iterator[Act]:
    number = _find_number(reading)
    if reading.progress == NOT_SERVED:
        if gate is not None and gate.verdict == "not promoted":
            yield from _list_gate_acts(principal, gate)
        if principal.may(Permission.DECISIONS_ANSWER):
            yield Act(label="Keep the present policy", link=f"/decisions/{number}#act")
    elif reading.progress == "waits for a person":
        yield Act(label=f"Answer decision {number}", link=f"/decisions/{number}#act")
    elif reading.progress == "its run failed":
        yield Act(label="See the failed run", link="/runs?state=failed")
    yield Act(label="Evidence", link=f"/decisions/{number}")


def _list_gate_acts(principal: Principal, gate: GateOut) -> Iterator[Act]:
    candidate, champion = _number(gate.candidate), _number(gate.champion)
    if principal.may(Permission.MODELS_PROMOTE):
        yield Act(label=f"Serve policy {candidate} anyway", link=f"/evolution#policy-{candidate}")
    yield Act(label="Compare them", link=f"/compare?a={champion}&b={candidate}")


def _is_refusal_of_now(
    gate: GateOut, champions: dict[Literal["reward_model", "policy"], ChampionState]
) -> bool:
    """It refused, and no policy was promoted since."""
    policy = champions.get("policy")
    is_newest = policy is None or policy.promoted_at < gate.decided_at
    return gate.verdict == "not promoted" and is_newest


def _find_number(reading: Reading) -> int:
    assert reading.link is not None  # of every change
    return int(reading.link.rpartition("/")[2])


def _number(label: str) -> str:
    return label.rpartition("@")[2]

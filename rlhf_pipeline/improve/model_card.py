"""The model card of a policy version: what it was made of, how it was judged, who released it.

It is made from records alone. A figure that there is not is named as missing, with the cause.
"""

import re
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

import pandas as pd

from rlhf_pipeline.core.records import (
    CalibrationReport,
    Evaluation,
    GateCheck,
    GateDecision,
    Interval,
    ModelVersion,
    Record,
)
from rlhf_pipeline.core.releases import ReleasedModel, ReleaseEvent
from rlhf_pipeline.improve.evaluation.gate import FEW_PROMPTS
from rlhf_pipeline.improve.lineage import ORIGINS, ModelTrace
from rlhf_pipeline.improve.retraining.parameters import StrategyParams
from rlhf_pipeline.learn.champions.champions import NOTICES

MARKS = re.compile(r"([\\`*\[\]<>|])")  # with a meaning in Markdown
Facts = tuple[tuple[str, str], ...]


class CardSection(Record):
    """Facts by name, or lines where there are no names."""

    title: str
    facts: Facts = ()
    lines: tuple[str, ...] = ()


class ModelCard(Record):
    label: str
    project: str
    sections: tuple[CardSection, ...]


@dataclass(frozen=True)
class CardEvidence:
    """The records behind a card. `votes`: EXPORTED_VOTES that taught the version; `categories`: of
    the prompts that it was judged on; `events`: its releases, `names` of who made them.
    """

    project: str
    model: ReleasedModel
    base: str
    trace: ModelTrace
    votes: pd.DataFrame
    gate: GateDecision | None
    judge: ModelVersion | None
    calibration: CalibrationReport | None
    categories: Sequence[str]
    events: Sequence[ReleaseEvent]
    names: Mapping[str, str]


def build_card(evidence: CardEvidence) -> ModelCard:
    """The card; the same evidence gives the same card. It names no annotator."""
    gate = evidence.gate
    evaluation = gate.evaluation if gate else None
    checks = gate.checks if gate else ()
    releases = tuple(_describe_event(event, evidence.names) for event in evidence.events)
    sections = (
        CardSection(title="Version", facts=_describe_version(evidence)),
        CardSection(title="Training", facts=_describe_training(evidence)),
        CardSection(title="Votes behind it", facts=_describe_votes(evidence)),
        CardSection(title="Judge", facts=_describe_judge(evidence)),
        CardSection(title="Evaluation", facts=_describe_evaluation(evidence, evaluation)),
        CardSection(
            title="Checks of the gate",
            facts=tuple((check.name, f"{_judge_check(check)}: {check.reason}") for check in checks),
            lines=() if checks else ("missing: the gate did not decide on it",),
        ),
        CardSection(title="Releases and approvals", lines=releases or ("none yet",)),
        CardSection(title="Known limits", lines=tuple(_list_limits(evidence, evaluation))),
    )
    return ModelCard(label=evidence.model.label, project=evidence.project, sections=sections)


def write_markdown(card: ModelCard) -> str:
    """The card as Markdown; texts of people stay text."""
    parts = [f"# Model card: {_escape(card.label)}\n"]
    for section in card.sections:
        parts.append(f"\n## {section.title}\n\n")
        parts += [f"- **{_escape(name)}**: {_escape(text)}\n" for name, text in section.facts]
        parts += [f"- {_escape(line)}\n" for line in section.lines]
    return "".join(parts)


def _describe_version(evidence: CardEvidence) -> Facts:
    model = evidence.model
    return (
        ("project", evidence.project),
        ("version", f"{model.label}, {model.semver}"),
        ("state", model.state),
        ("registered", f"{model.created_at:%Y-%m-%d %H:%M} UTC"),
        ("trained from", model.parent or "nothing here: it was registered as it is"),
        ("first of its line", evidence.base),
        ("hash of its files", model.content_hash),
        ("code commit", model.code_commit or "missing: not recorded"),
    )


def _describe_training(evidence: CardEvidence) -> Facts:
    model, trace = evidence.model, evidence.trace
    if model.parent is None:
        return (("training", "none: it was not trained here"),)
    defaults = StrategyParams().model_dump(mode="json")
    changed = [
        f"{name} = {value}"
        for name, value in sorted(model.params.items())
        if name in defaults and value != defaults[name]
    ]
    rows = trace.rows and "; ".join(
        f"{n:,} {ORIGINS.get(name, name)}" for name, n in trace.rows.items()
    )
    return (
        ("strategy", model.params.get("strategy") or "missing: not recorded"),
        ("parameters that differ from the defaults", ", ".join(changed) or "none"),
        ("training set", rows or "missing: its file is not kept"),
        ("hash of the training set", model.data_hash or "missing: not recorded"),
        ("curated data set", trace.dataset or "none"),
    )


def _describe_votes(evidence: CardEvidence) -> Facts:
    trace, votes = evidence.trace, evidence.votes
    if not trace.n_votes:
        is_lost = evidence.model.parent is not None and trace.rows is None
        return (("votes", "missing: its training set is not kept" if is_lost else "none"),)
    groups = Counter(annotator.group or "no group" for annotator in trace.annotators)
    known = votes["is_blind"].dropna()
    blind = "missing: not recorded for any vote"
    if len(known):
        blind = f"{known.mean():.0%} of {len(known):,} votes for which it is recorded"
    return (
        ("votes", f"{trace.n_votes:,}: {_join(Counter(votes['annotator_kind']))}"),
        ("days", f"{trace.first_day} to {trace.last_day}"),
        ("seq", f"{trace.first_seq:,} to {trace.last_seq:,}"),
        ("annotators", f"{len(trace.annotators):,}: {_join(groups)}"),
        ("cast blind", blind),
        ("entries of feedback", f"{len(trace.feedback_ids):,}"),
    )


def _describe_judge(evidence: CardEvidence) -> Facts:
    judge, report = evidence.judge, evidence.calibration
    if evidence.trace.reward_model is None:
        return (("reward model", "missing: none judged it"),)
    cause = "it was not calibrated"
    unknown = "too few overlapping votes" if report else cause
    return (
        ("reward model", evidence.trace.reward_model),
        ("test pairs predicted right", _estimate(report.raw.accuracy if report else None, cause)),
        ("possible: noise ceiling", _estimate(report.noise_ceiling if report else None, unknown)),
        ("calibration error (ECE)", _estimate(report.calibrated.ece if report else None, cause)),
        ("hash of its training data", (judge and judge.data_hash) or "missing: not recorded"),
    )


def _describe_evaluation(evidence: CardEvidence, evaluation: Evaluation | None) -> Facts:
    gate = evidence.gate
    if evaluation is None or gate is None:
        return (("evaluation", "missing: it was not compared with another version"),)
    by_people = gate.people_win_rate
    decided = "people's votes on both versions" if by_people else "the judge alone"
    checkable = _estimate(evaluation.checkable_difference, "no prompt has a checkable answer")
    return (
        ("compared with", f"{evaluation.champion}, on {evaluation.n_prompts:,} frozen prompts"),
        ("evaluation set", f"version {evaluation.evaluation_set or 'missing'}"),
        ("hash of its prompts", evaluation.prompts_hash),
        ("win rate by the judge", _estimate(evaluation.win_rate, "")),
        ("win rate by people's votes", _estimate(by_people, "nobody voted on it")),
        ("decided by", "nobody yet, people are asked" if gate.asks_people else decided),
        ("verdict of the gate", gate.verdict),
        ("win rate at equal length", _estimate(evaluation.length_controlled_win_rate)),
        ("win rate by who labelled its pairs", _estimate(evaluation.win_rate_by_labels)),
        ("judge right on held-out pairs", _estimate(evaluation.judge_agreement)),
        *(
            (f"win rate in {category.category}", _estimate(category.win_rate, ""))
            for category in evaluation.by_category
        ),
        *(
            (f"win rate in {name}", "missing: too few prompts")
            for name in _find_unmeasured(evidence, evaluation)
        ),
        ("facts right, minus the other version's", checkable),
        ("KL from it, nats per token", _estimate(evaluation.kl, "")),
        ("length, characters", _estimate(evaluation.length_candidate, "", "{:,.0f}")),
        ("its length, characters", _estimate(evaluation.length_champion, "", "{:,.0f}")),
    )


def _list_limits(evidence: CardEvidence, evaluation: Evaluation | None) -> Iterator[str]:
    """What a reader has to know before trusting the figures, each from a record."""
    if evaluation is None:
        yield "No evaluation says whether it is better than another version."
    elif evaluation.n_prompts < FEW_PROMPTS:
        yield f"It was judged on {evaluation.n_prompts} prompts, fewer than {FEW_PROMPTS}."
    if evidence.gate and evidence.gate.people_win_rate is None:
        yield "No person compared it with another version: the judge alone did."
    if evaluation and evaluation.shares_votes:
        yield "The judge knows votes that it was trained on: its win rate may be too high."
    elif evaluation and evaluation.shares_votes is None:
        yield "Whether the judge knows votes that it was trained on is not recorded."
    if evaluation and (unmeasured := _find_unmeasured(evidence, evaluation)):
        yield f"Categories without a figure of their own: {', '.join(unmeasured)}."
    elif evaluation and not evaluation.by_category:
        yield "No category of prompts has a figure of its own."
    for check in evidence.gate.checks if evidence.gate else ():
        if (verdict := _judge_check(check)) != "pass":
            needed = "required" if check.is_required else "not required"
            yield f"Check {check.name}, {needed}: {verdict}."
    if "human" not in set(evidence.votes["annotator_kind"]):
        yield "No vote of a person is known to have taught it."
    if evidence.trace.reward_model and evidence.calibration is None:
        yield "Its judge was not calibrated."
    if evidence.model.removed_at:
        yield f"Its files were removed on {evidence.model.removed_at:%Y-%m-%d}."
    yield from (f"At registration: {notice}." for notice in evidence.model.params.get(NOTICES, ()))
    yield "The figures hold for prompts like those of this project, and for no others."


def _find_unmeasured(evidence: CardEvidence, evaluation: Evaluation) -> list[str]:
    measured = {category.category for category in evaluation.by_category}
    return sorted(set(evidence.categories) - measured)


def _describe_event(event: ReleaseEvent, names: Mapping[str, str]) -> str:
    who = "the gate" if event.actor.startswith("run ") else names.get(event.actor, event.actor)
    ticked = ""
    if event.checklist:
        word = "to tick" if event.act == "request" else "ticked"
        ticked = f" ({word}: {'; '.join(event.checklist)})"
    return f"{event.at:%Y-%m-%d %H:%M} UTC, {event.act} by {who}: {event.reason}{ticked}"


def _judge_check(check: GateCheck) -> str:
    if check.is_missing:
        return "missing"
    return "fail" if not check.passed else "warning" if check.is_warning else "pass"


def _estimate(interval: Interval | None, cause: str = "not measured", form: str = "{:.3f}") -> str:
    if interval is None:
        return f"missing: {cause}"
    low, high = form.format(interval.low), form.format(interval.high)
    few = f" within {interval.few_groups} groups" if interval.few_groups else ""
    return (
        f"{form.format(interval.value)} ({low} to {high}, {interval.level:.0%} interval, "
        f"n = {interval.n:,}{few})"
    )


def _join(counts: Mapping[str, int]) -> str:
    return ", ".join(f"{n:,} {name}" for name, n in sorted(counts.items(), key=str))


def _escape(text: str) -> str:
    """One line on which no character has a meaning in Markdown."""
    return MARKS.sub(r"\\\1", " ".join(text.split()))

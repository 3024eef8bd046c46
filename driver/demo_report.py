"""Prints what the demo did: each day beside the simulated truth, decisions and gates."""

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import date
from itertools import pairwise

import pandas as pd
from rich.console import Console
from rich.table import Table

from rlhf_pipeline.application.driver.demo import DemoState
from rlhf_pipeline.core.artefacts import Artefacts
from rlhf_pipeline.core.config import Settings
from rlhf_pipeline.core.intervals import interval_of_mean
from rlhf_pipeline.core.records import GateDecision, Interval, TriggerDecision
from rlhf_pipeline.core.terminal import escape_markup
from rlhf_pipeline.feedback.votes import noise_ceiling_or_repeats
from rlhf_pipeline.feedback.votes.counting import counting_votes
from rlhf_pipeline.improve.retraining.messages import read_causes, summarise_decision
from rlhf_pipeline.simulation import DEMO_SCENARIO, Taste, utility
from rlhf_pipeline.store import Store
from rlhf_pipeline.watch.drift.report import overall_verdict

COLOURS = {"drift": "red", "warning": "yellow", "stable": "green", "insufficient": "dim"}


@dataclass(frozen=True)
class DayRow:
    """One simulated day. `utility` is the simulator's truth: printed, never decided on."""

    day: str
    taste: str
    policy: str
    judge: str
    n_votes: int
    accuracy: Interval | None
    ceiling: Interval | None
    verdict: str
    utility: Interval


def print_summary(settings: Settings, console: Console) -> None:
    """The tables at the end of a call, over all days of the demo."""
    store = Store.of_home(settings)
    rows = collect_day_rows(settings, Artefacts(settings.frames))
    promotions = store.promotions.history(f"{settings.project}.policy")
    changed = next((r.day for before, r in pairwise(rows) if before.taste != r.taste), None)
    latest = f"{settings.project}.policy@{promotions[-1].version}" if len(promotions) > 1 else None
    console.print()
    print_days(rows, console)
    print_decisions(store.decisions.all(), store.gates.all(), console)
    print_utility(rows, changed, next((r.day for r in rows if r.policy == latest), None), console)


def collect_day_rows(settings: Settings, files: Artefacts) -> list[DayRow]:
    finished = DemoState.read(settings.demo_state).finished or ""
    # a daemon reports days of its own
    return [_day_row(settings, files, day) for day in files.days("drift_report") if day <= finished]


def _day_row(settings: Settings, files: Artefacts, day: str) -> DayRow:
    votes, report, completions = (
        files.read_frame(stage, day) for stage in ("votes", "drift_report", "completions")
    )
    predictions = files.read_frame("reflection_log", day).dropna(subset=["is_error"])
    taste = DEMO_SCENARIO.taste_on((date.fromisoformat(day) - settings.start_day).days)
    return DayRow(
        day=day,
        taste=taste.name,
        policy=str(completions["model_version"].iloc[0]),
        judge=str(predictions["reward_model"].iloc[0]) if len(predictions) else "-",
        n_votes=len(counting_votes(votes)),
        accuracy=_measure_accuracy(predictions),
        ceiling=noise_ceiling_or_repeats(votes),
        verdict=overall_verdict(report),
        utility=_measure_utility(files.read_frame("prompts", day), completions, taste),
    )


def _measure_accuracy(predictions: pd.DataFrame) -> Interval | None:
    """Accuracy of predictions that met a vote; None where none did."""
    if predictions.empty:
        return None
    correct = 1 - predictions["is_error"].astype(float).to_numpy()
    return interval_of_mean(correct, groups=predictions["comparison_id"].tolist())


def _measure_utility(prompts: pd.DataFrame, completions: pd.DataFrame, taste: Taste) -> Interval:
    """Mean utility of the completions under `taste`, with a bootstrap interval over prompts."""
    texts = completions[completions["error"].isna()]
    prompt_rows = prompts.set_index("prompt_id").loc[texts["prompt_id"]]
    references = [None if pd.isna(r) else r for r in prompt_rows["reference"]]
    return interval_of_mean(
        utility(prompt_rows["text"].tolist(), references, texts["text"].tolist(), taste),
        groups=texts["prompt_id"].tolist(),
    )


def print_days(rows: Sequence[DayRow], console: Console) -> None:
    table = Table(
        title="Day by day: accuracy of predictions made before the votes, beside the noise ceiling"
    )
    for name in (
        "day",
        "taste",
        "policy",
        "reward model",
        "votes",
        "accuracy",
        "noise ceiling",
        "drift",
        "true utility",
    ):
        table.add_column(name, no_wrap=True)
    for row in rows:
        verdict = f"[{COLOURS[row.verdict]}]{row.verdict}[/]"
        judge, policy = (
            name[name.find("@") :] if "@" in name else name for name in (row.judge, row.policy)
        )
        table.add_row(
            row.day,
            row.taste,
            policy,
            judge,
            str(row.n_votes),
            format_short(row.accuracy),
            format_short(row.ceiling),
            verdict,
            format_short(row.utility),
        )
    console.print(table)


def format_short(interval: Interval | None) -> str:
    """`.81 [.76 .86]`: an estimate and its 95 % interval in as few columns as can be read."""
    return f"{interval.value:.2f} [{interval.low:.2f} {interval.high:.2f}]" if interval else "-"


def print_decisions(
    triggers: Sequence[TriggerDecision], gates: Sequence[GateDecision], console: Console
) -> None:
    for decision in triggers:
        # the summary names the cause; what confirmed it comes first among the reasons
        reasons = decision.reasons[:1] if decision.action == "fire" else decision.reasons
        console.print(
            f"[bold]Trigger {decision.decision_id}: {decision.action}[/] · "
            f"{escape_markup(summarise_decision(decision))}{describe_rise(decision)}\n"
            f"  {escape_markup('; '.join(reasons))}"
        )
    if not triggers:
        console.print("No drift or calibration event: nothing was retrained.")
    for gate in gates:
        verdict = f"[{'green' if gate.promoted else 'red'}]{gate.verdict}[/]"
        console.print(f"[bold]Gate: {gate.candidate} against {gate.champion}: {verdict}[/]")
        if gate.evaluation:
            console.print(
                f"  win rate {gate.evaluation.win_rate} on {gate.evaluation.n_prompts} frozen "
                f"prompts, judged by {gate.evaluation.reward_model}"
            )
        for check in gate.checks:
            mark = (
                "✓" if check.passed and not check.is_warning else "✗" if check.is_blocking else "!"
            )
            console.print(f"  {mark} {escape_markup(check.reason)}")


def describe_rise(decision: TriggerDecision) -> str:
    """The evidence of a change: by how much errors exceed those expected, and in how many votes."""
    causes = read_causes(decision)
    if causes is None:
        return ""
    rise = causes.rise
    points = f"{rise.value:+.2f} ({rise.low:+.2f} to {rise.high:+.2f})"
    return f" · errors {points} over what is stated, in {causes.n_after:,} votes"


def print_utility(
    rows: Sequence[DayRow], change: str | None, promoted_from: str | None, console: Console
) -> None:
    """Mean true utility before the change, after it, and after the promotion, whatever it shows."""
    phases: dict[str, list[float]] = {}
    for row in rows:
        phase = "before the change"
        if promoted_from and row.day >= promoted_from:
            phase = "after the promotion"
        elif change and row.day >= change:
            phase = "after the change"
        phases.setdefault(phase, []).append(row.utility.value)
    parts = [
        f"{phase} {sum(values) / len(values):+.3f} ({len(values)} day{'s' * (len(values) > 1)})"
        for phase, values in phases.items()
    ]
    console.print(
        "[bold]True utility of the champion (the simulator's, never used to decide):[/] "
        f"{' · '.join(parts)}"
    )

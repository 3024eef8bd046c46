"""The demo's tables: per stage what was made and the number that matters, per day what happened, and the gate's reasons."""

from collections.abc import Sequence
from dataclasses import dataclass

from rich.console import Console
from rich.table import Table

from demo.loop import StageRun
from rlhf_pipeline.records import CalibrationReport, GateDecision, Interval, TriggerDecision

STAGES = (
    "prompts", "completions", "comparisons", "votes", "preference_pairs", "reflection_log", "drift_report",
    "reward_model", "calibration", "retraining_set", "candidate_model", "evaluation", "gate",
)  # fmt: skip


@dataclass(frozen=True)
class DayRow:
    day: str
    taste: str
    policy: str
    judge: str
    n_votes: int
    accuracy: Interval | None
    ceiling: Interval | None
    verdict: str
    utility: Interval


def stages(history: Sequence[StageRun], console: Console) -> None:
    table = Table("stage", "runs", "seconds", "the last one", title="What was made")
    for name in STAGES:
        mine = [run for run in history if run.stage == name]
        if mine:
            table.add_row(name, str(len(mine)), f"{sum(run.seconds for run in mine):.1f}", mine[-1].headline)
    console.print(table)


def days(rows: Sequence[DayRow], console: Console) -> None:
    table = Table(
        "day",
        "taste",
        "policy",
        "predicted by",
        "votes",
        "accuracy before the vote",
        "noise ceiling",
        "drift",
        "true utility",
        title="Day by day",
    )
    colours = {"drift": "red", "warning": "yellow", "stable": "green", "insufficient": "dim"}
    for row in rows:
        table.add_row(
            row.day, row.taste, row.policy, row.judge, str(row.n_votes), str(row.accuracy or "-"), str(row.ceiling or "-"),
            f"[{colours[row.verdict]}]{row.verdict}[/]", str(row.utility),
        )  # fmt: skip
    console.print(table)


def calibrations(reports: Sequence[CalibrationReport], console: Console) -> None:
    table = Table(
        "reward model",
        "method",
        "accuracy",
        "noise ceiling",
        "ECE before",
        "ECE after",
        "log loss before → after",
        title="Calibration, on votes never fitted to",
    )
    for r in reports:
        table.add_row(
            r.reward_model, r.method, str(r.raw.accuracy), str(r.noise_ceiling or "-"), str(r.raw.ece_equal_mass),
            str(r.calibrated.ece_equal_mass), f"{r.raw.log_loss.value:.3f} → {r.calibrated.log_loss.value:.3f}",
        )  # fmt: skip
    console.print(table)


def decisions(triggers: Sequence[TriggerDecision], gates: Sequence[GateDecision], console: Console) -> None:
    for decision in triggers:
        console.print(f"[bold]Trigger {decision.decision_id}: {decision.action}[/] ({decision.state}) · {'; '.join(decision.reasons)}")
    if not triggers:
        console.print("No drift or calibration event: nothing was retrained.")
    for gate in gates:
        verdict = "[green]promoted[/]" if gate.promoted else "[red]not promoted[/]"
        console.print(f"[bold]Gate: {gate.candidate} against {gate.champion}: {verdict}[/]")
        if gate.evaluation:
            console.print(
                f"  win rate {gate.evaluation.win_rate} on {gate.evaluation.n_prompts} frozen prompts, judged by {gate.evaluation.reward_model}"
            )
        for check in gate.checks:
            console.print(f"  {'[green]✓[/]' if check.passed else '[red]✗[/]'} {check.name}: {check.reason}")


def utility_summary(rows: Sequence[DayRow], change: str | None, promoted_from: str | None, console: Console) -> None:
    """Mean true utility before the change, after it, and after the promotion, whatever it shows."""
    phases = {"before the change": [], "after the change": [], "after the promotion": []}  # type: dict[str, list[float]]
    for row in rows:
        phase = (
            "after the promotion"
            if promoted_from and row.day >= promoted_from
            else "after the change"
            if change and row.day >= change
            else "before the change"
        )
        phases[phase].append(row.utility.value)
    parts = [f"{phase} {sum(values) / len(values):+.3f} ({len(values)} days)" for phase, values in phases.items() if values]
    console.print(f"[bold]True utility of the champion (the simulator's, never used to decide):[/] {' · '.join(parts)}")

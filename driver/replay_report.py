"""Prints replayed days, one line each."""

from collections.abc import Iterator

from driver.demo_report import COLOURS, accuracy_of, format_short, overall_verdict
from rlhf_pipeline.artefacts import Artefacts
from rlhf_pipeline.config import Settings
from rlhf_pipeline.retraining.messages import describe_action
from rlhf_pipeline.store import Store
from rlhf_pipeline.votes import noise_ceiling_or_repeats
from rlhf_pipeline.votes.counting import counting
from sensors.replay_steps import end_of_day

WIDTHS = {
    "day": 10,
    "votes": 6,
    "model": 5,
    "judged": 6,
    "accuracy": 16,
    "noise ceiling": 16,
    "drift": 12,
    "seconds": 7,
}


def format_header() -> str:
    return f"[bold]{_format_row(*WIDTHS)}[/]"


def format_day(settings: Settings, day: str, seconds: float) -> str:
    """A day's figures; `judged` counts votes for a or b that met a prediction."""
    files = Artefacts(settings.frames)
    if day not in files.days("drift_report"):
        return _format_row(day, "0", "-", "0", "-", "-", "no votes", f"{seconds:.1f}")
    votes, reflections, report = (
        files.read_frame(stage, day) for stage in ("votes", "reflection_log", "drift_report")
    )
    judged = reflections.dropna(subset=["is_error"])
    models = (
        "+".join(label[label.find("@") :] for label in sorted(judged["reward_model"].unique()))
        or "-"
    )
    verdict = overall_verdict(report)
    figures = (
        day,
        f"{len(counting(votes)):,}",
        models,
        f"{len(judged):,}",
        format_short(accuracy_of(judged)),
        format_short(noise_ceiling_or_repeats(votes)),
    )
    return _format_row(
        *figures, f"[{COLOURS[verdict]}]{verdict:<{WIDTHS['drift']}}[/]", f"{seconds:.1f}"
    )


def format_decisions(store: Store, day: str) -> Iterator[str]:
    """The trigger's decisions at the end of a day."""
    for decision in store.decisions.all():
        if decision.decided_at == end_of_day(day):
            yield (f"  {day}  trigger: {describe_action(decision)}: {'; '.join(decision.reasons)}")


def _format_row(*cells: str) -> str:
    """Numbers are right-aligned; a cell with markup must already have its width."""
    right = {"votes", "judged", "seconds"}
    padded = (
        f"{c:>{w}}" if name in right else f"{c:<{w}}"
        for c, (name, w) in zip(cells, WIDTHS.items(), strict=True)
    )
    return "  ".join(padded).rstrip()

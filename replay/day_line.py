"""A replayed day in one line: votes, the accuracy of predictions made before them beside the noise
ceiling, the verdict.
"""

from collections.abc import Iterator

from demo.table import COLOURS, format_short
from rlhf_pipeline.artefacts import Artefacts
from rlhf_pipeline.config import Settings
from rlhf_pipeline.intervals import interval_of_mean
from rlhf_pipeline.store import Store
from rlhf_pipeline.votes import noise_ceiling_or_repeats
from rlhf_pipeline.votes.counting import counting
from sensors.replay import end_of_day

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
    """Judged are votes for a or b that meet a prediction; accuracy is theirs."""
    files = Artefacts(settings.frames)
    if day not in files.days("drift_report"):
        return _format_row(day, "0", "-", "0", "-", "-", "no votes", f"{seconds:.1f}")
    votes, reflections, report = (
        files.read_frame(stage, day) for stage in ("votes", "reflection_log", "drift_report")
    )
    judged = reflections.dropna(subset=["is_error"])
    right = 1 - judged["is_error"].astype(float).to_numpy()
    accuracy = (
        interval_of_mean(right, groups=judged["comparison_id"].tolist()) if len(judged) else None
    )
    models = (
        "+".join(label[label.find("@") :] for label in sorted(judged["reward_model"].unique()))
        or "-"
    )
    verdict = str(report.loc[report["space"] == "overall", "verdict"].iloc[0])
    figures = (
        day,
        f"{len(counting(votes)):,}",
        models,
        f"{len(judged):,}",
        format_short(accuracy),
        format_short(noise_ceiling_or_repeats(votes)),
    )
    return _format_row(
        *figures, f"[{COLOURS[verdict]}]{verdict:<{WIDTHS['drift']}}[/]", f"{seconds:.1f}"
    )


def format_decisions(store: Store, day: str) -> Iterator[str]:
    """What the trigger decided at the day's end."""
    for decision in store.decisions.all():
        if decision.decided_at == end_of_day(day):
            yield (
                f"  {day}  trigger: {decision.action} ({decision.state}): "
                f"{'; '.join(decision.reasons)}"
            )


def _format_row(*cells: str) -> str:
    """Numbers to the right; a cell that brings its own colour is as wide as it is."""
    right = {"votes", "judged", "seconds"}
    padded = (
        f"{c:>{w}}" if name in right else f"{c:<{w}}"
        for c, (name, w) in zip(cells, WIDTHS.items(), strict=True)
    )
    return "  ".join(padded).rstrip()

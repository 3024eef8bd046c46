"""A replayed day in one line: votes, the accuracy of predictions made before them beside the noise
ceiling, the verdict.
"""

from collections.abc import Iterator

from demo.table import COLOURS, short
from rlhf_pipeline.artefacts import Artefacts
from rlhf_pipeline.config import Settings
from rlhf_pipeline.store import Store
from rlhf_pipeline.votes import shown_ceiling
from rlhf_pipeline.votes.intervals import interval_of_mean
from sensors.replay import end_of

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


def header() -> str:
    return f"[bold]{_row(*WIDTHS)}[/]"


def day_line(settings: Settings, day: str, seconds: float) -> str:
    """Judged are votes for a or b that meet a prediction; accuracy is theirs."""
    files = Artefacts(settings.frames)
    if day not in files.days("drift_report"):
        return _row(day, "0", "-", "0", "-", "-", "no votes", f"{seconds:.1f}")
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
        f"{len(votes):,}",
        models,
        f"{len(judged):,}",
        short(accuracy),
        short(shown_ceiling(votes)),
    )
    return _row(*figures, f"[{COLOURS[verdict]}]{verdict:<{WIDTHS['drift']}}[/]", f"{seconds:.1f}")


def decision_lines(store: Store, day: str) -> Iterator[str]:
    """What the trigger decided at the day's end."""
    for decision in store.decisions.all():
        if decision.decided_at == end_of(day):
            yield (
                f"  {day}  trigger: {decision.action} ({decision.state}): "
                f"{'; '.join(decision.reasons)}"
            )


def _row(*cells: str) -> str:
    """Numbers to the right; a cell that brings its own colour is as wide as it is."""
    right = {"votes", "judged", "seconds"}
    padded = (
        f"{c:>{w}}" if name in right else f"{c:<{w}}"
        for c, (name, w) in zip(cells, WIDTHS.items(), strict=True)
    )
    return "  ".join(padded).rstrip()

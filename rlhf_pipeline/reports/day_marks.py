"""Marks days on charts: another model is deployed, or taste changed."""

from collections.abc import Iterable, Mapping, Sequence
from datetime import date
from itertools import pairwise

from rlhf_pipeline.reports.chart import Axis, Mark, Panel, day_value


def keep_within(x: Axis, marks: Iterable[Mark]) -> list[Mark]:
    """The lines that lie on the axis."""
    return [mark for mark in marks if mark.x is not None and x.low <= mark.x[0] <= x.high]


def add_marks(panels: Sequence[Panel], marks: Sequence[Mark]) -> list[Panel]:
    """The panels with the lines; only the first, uppermost one has their labels."""
    bare = [mark.model_copy(update={"label": ""}) for mark in marks]
    return [
        panel.model_copy(update={"marks": (*panel.marks, *(bare if i else marks))})
        for i, panel in enumerate(panels)
    ]


def mark_taste_changes(changes: Mapping[date, str]) -> tuple[Mark, ...]:
    """A line with its words per confirmed change, at the day of the first vote of the new taste."""
    return tuple(
        Mark(
            style="line",
            role="since",
            x=(day_value(day),) * 2,
            label=words,
            name="taste changed",
        )
        for day, words in sorted(changes.items())
    )


def mark_deployments(
    deployed: Mapping[str, Mapping[date, str]], name: str = "champion changed"
) -> tuple[Mark, ...]:
    """A line per day on which another version is deployed than on the day before, whatever changed
    on it. `deployed` holds the label of each day, by kind of model.
    """
    changes: dict[date, list[str]] = {}
    for what, versions in deployed.items():
        for (_, before), (day, now) in pairwise(sorted(versions.items())):
            if before != now:
                changes.setdefault(day, []).append(f"{what} @{now.rpartition('@')[2]}")
    return tuple(
        Mark(
            style="line",
            role="model",
            x=(day_value(day),) * 2,
            label=", ".join(words),
            name=name,
        )
        for day, words in sorted(changes.items())
    )

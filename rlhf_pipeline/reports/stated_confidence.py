"""Builds the chart of an annotator's own confidence: the share of right votes by what they said."""

from collections.abc import Sequence

import numpy as np

from rlhf_pipeline.core.intervals import interval_of_share
from rlhf_pipeline.reports.chart import Axis, Chart, Mark, Panel, percent_ticks, point_series

TITLE = "Share of right votes by stated confidence"
NO_VOTES = (
    "No vote with a stated confidence on a comparison whose answer is known yet. They count from "
    "the day after the vote."
)
TICKS = percent_ticks(np.arange(6) / 5)


def chart_stated_confidence(counts: Sequence[tuple[float, int, int]]) -> Chart:
    """`counts`: stated confidence (0 to 1), votes with it on known answers, and right ones."""
    if not counts:
        return Chart(kind="stated_confidence", title=TITLE, alt=TITLE, panels=(), notes=(NO_VOTES,))
    panel = Panel(
        x=Axis(low=0, high=1.02, label="stated confidence", unit="share", ticks=TICKS),
        y=Axis(low=0, high=1, label="share right", unit="share", ticks=TICKS),
        height=220,
        marks=(Mark(style="line", role="perfect", x=(0, 1), y=(0, 1), name="as right as stated"),),
        series=(
            point_series(
                [stated for stated, _, _ in counts],
                [interval_of_share(right / n, n) for _, n, right in counts],
                role="now",
                name="your votes",
            ),
        ),
    )
    return Chart(
        kind="stated_confidence",
        title=TITLE,
        alt=TITLE,
        width=480,
        panels=(panel,),
        notes=("bars: 95% intervals",),
    )

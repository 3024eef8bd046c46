"""Builds the chart of error clusters over days: the error rate of each on the days it was found."""

from collections.abc import Iterator, Sequence
from datetime import date

import numpy as np

from rlhf_pipeline.core.intervals import interval_of_share
from rlhf_pipeline.reports.chart import (
    GROUP_ROLES,
    Axis,
    Chart,
    Panel,
    Role,
    Series,
    day_axis,
    day_curves,
    percent_ticks,
    to_day,
)
from rlhf_pipeline.watch.drift.cluster_history import PromptCluster

TITLE = "Error rate of each cluster by day"
NO_DAYS = (
    "No cluster of this day has enough judged prompts for an error rate, so that none can be "
    "followed over days."
)


def chart_cluster_days(clusters: Sequence[PromptCluster]) -> Chart:
    """The first clusters, as many as there are colours; a day with too few prompts is a gap."""
    with_trend = [
        cluster for cluster in clusters if any(day.error is not None for day in cluster.trend)
    ]
    followed = with_trend[: len(GROUP_ROLES)]
    days = [date.fromisoformat(day.day) for cluster in followed for day in cluster.trend]
    if not days:
        return Chart(kind="cluster_days", title=TITLE, alt=TITLE, panels=(), notes=(NO_DAYS,))
    series = [
        run
        for role, cluster in zip(GROUP_ROLES, followed, strict=False)
        for run in _follow(cluster, role)
    ]
    panel = Panel(
        title="Share of the cluster's judged prompts that were predicted wrong",
        x=day_axis(min(days), max(days)),
        y=Axis(
            low=0,
            high=1,
            label="error rate",
            unit="share",
            ticks=percent_ticks(np.arange(0, 6) / 5),
        ),
        height=180,
        series=tuple(series),
    )
    n_more = len(with_trend) - len(followed)
    return Chart(
        kind="cluster_days",
        title=TITLE,
        alt=f"{TITLE}, from {min(days)} to {max(days)}",
        panels=(panel,),
        notes=(
            "bands: 95% intervals",
            *([f"{n_more} more clusters are listed below"] if n_more else []),
        ),
    )


def _follow(cluster: PromptCluster, role: Role) -> Iterator[Series]:
    days = {date.fromisoformat(day.day): day for day in cluster.trend if day.error is not None}
    intervals = [interval_of_share(day.error or 0.0, day.n_prompts) for day in days.values()]
    for run in day_curves(list(days), intervals, role=role, name=cluster.name):
        links = tuple(f"/clusters/{cluster.cluster_id}?day={to_day(x)}" for x in run.x)
        yield run.model_copy(update={"links": links})

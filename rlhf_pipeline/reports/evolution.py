"""Builds the chart of policy versions: win rate, correct answers, KL and length of each."""

from collections.abc import Callable, Mapping, Sequence

from rlhf_pipeline.core.records import Evaluation
from rlhf_pipeline.reports.chart import (
    Axis,
    Chart,
    Estimate,
    Mark,
    Panel,
    Role,
    Series,
    Tick,
    list_ends,
    percent_ticks,
    pick_spaced,
    point_series,
    round_ticks,
)

TITLE = "Policy versions: win rate, correct answers, KL and length"
NO_VERSIONS = (
    "No candidate was evaluated yet. The job retraining trains one and compares it with the "
    "champion."
)
ROLES: Mapping[str, Role] = {
    "by the judge": "now",
    "at equal length": "group2",
    "by the reward model that labelled its training pairs": "group3",
    "this version": "group4",
    "champion of that time": "ref",
}
MAX_TICKS = 12
SPREAD, WIDE_SPREAD = 9, 26  # pixels between series of one version, and of few versions
FEW_VERSIONS = 8
Values = Mapping[str, Sequence[Estimate | None]]


def chart_evolution(
    evaluations: Mapping[int, Evaluation],
    champion: int | None = None,
    link: Callable[[int], str] | None = None,
    *,
    no_versions: str = NO_VERSIONS,
) -> Chart:
    """One point per evaluated version, by version. A line marks the champion if it was evaluated;
    `link` leads from a version to its decision, `no_versions` says why there is none.
    """
    if not evaluations:
        return Chart(kind="evolution", title=TITLE, alt=TITLE, panels=(), notes=(no_versions,))
    versions = sorted(evaluations)
    rows = [evaluations[version] for version in versions]
    links = tuple(link(version) for version in versions) if link else ()
    x = Axis(
        low=versions[0] - 0.6,
        high=versions[-1] + 0.6,
        label="policy version",
        unit="version",
        has_grid=False,
    )
    marks = _mark_champion(champion if champion in evaluations else None)
    panels = [
        _share_panel(
            "Win rate against the champion of that time",
            "win rate",
            versions,
            {
                "by the judge": [row.win_rate for row in rows],
                "at equal length": [row.length_controlled_win_rate for row in rows],
                "by the reward model that labelled its training pairs": [
                    row.win_rate_by_labels for row in rows
                ],
            },
            (Mark(style="line", role="perfect", y=(0.5, 0.5), name="equally good"),),
        ),
        _share_panel(
            "Checkable answers that are right",
            "share right",
            versions,
            {
                "this version": [row.checkable_candidate for row in rows],
                "champion of that time": [row.checkable_champion for row in rows],
            },
        ),
        _panel(
            "KL from the champion of that time, in nats per token",
            "nats per token",
            versions,
            {"this version": [row.kl for row in rows]},
        ),
        _panel(
            "Mean length, in characters",
            "characters",
            versions,
            {
                "this version": [row.length_candidate for row in rows],
                "champion of that time": [row.length_champion for row in rows],
            },
        ),
    ]
    linked_panels = [
        panel.model_copy(
            update={
                "x": x,
                "marks": (*panel.marks, *marks),
                "series": tuple(_link(series, versions, links) for series in panel.series),
            }
        )
        for panel in panels
        if panel.series
    ]
    last = {"ticks": _version_ticks(versions, champion)}
    linked_panels[-1] = linked_panels[-1].model_copy(update={"x": x.model_copy(update=last)})
    return Chart(
        kind="evolution",
        title=TITLE,
        alt=f"{TITLE}, versions {versions[0]} to {versions[-1]}",
        panels=tuple(linked_panels),
        notes=("Lines are 95% intervals over prompts.",),
    )


def _share_panel(
    title: str, label: str, versions: Sequence[int], values: Values, marks: tuple[Mark, ...] = ()
) -> Panel:
    panel = _panel(title, label, versions, values)
    y = Axis(low=0, high=1, label=label, unit="share", ticks=percent_ticks((0, 0.25, 0.5, 0.75, 1)))
    return panel.model_copy(update={"y": y, "height": 150, "marks": marks})


def _panel(title: str, label: str, versions: Sequence[int], values: Values) -> Panel:
    spread = WIDE_SPREAD if len(versions) <= FEW_VERSIONS else SPREAD
    curves = {name: estimates for name, estimates in values.items() if any(estimates)}
    ends = [end for curve in curves.values() for end in list_ends(curve)]
    low, high = min([0.0, *ends]), max(ends, default=1.0) * 1.08 or 1.0
    return Panel(
        title=title,
        x=Axis(low=0, high=1, label="version"),  # replaced by the versions'
        y=Axis(low=low, high=high, label=label, unit=label, ticks=round_ticks(low, high, 3)),
        height=90,
        series=tuple(
            point_series(
                versions,
                estimates,
                role=ROLES[name],
                name=name,
                offset=spread * (i - (len(curves) - 1) / 2),
            )
            for i, (name, estimates) in enumerate(curves.items())
        ),
    )


def _link(series: Series, versions: Sequence[int], links: Sequence[str]) -> Series:
    by_version = dict(zip(versions, links, strict=False))
    point_links = tuple(by_version[round(x)] for x in series.x) if links else ()
    return series.model_copy(update={"links": point_links})


def _mark_champion(champion: int | None) -> tuple[Mark, ...]:
    if champion is None:
        return ()
    return (Mark(style="line", role="model", x=(champion, champion), name="champion now"),)


def _version_ticks(versions: Sequence[int], champion: int | None) -> tuple[Tick, ...]:
    least = (versions[-1] - versions[0]) / MAX_TICKS
    return tuple(
        Tick(value=versions[i], label=str(versions[i]), strong=versions[i] == champion)
        for i in pick_spaced(versions, least)
    )

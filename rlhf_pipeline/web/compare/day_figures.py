"""Reads the figures of two days side by side: metric points, and sums of votes."""

from collections.abc import Iterable, Mapping
from datetime import date

from rlhf_pipeline.api_types.compared_days import ComparedFigure
from rlhf_pipeline.intervals import interval_of_difference, interval_of_sums
from rlhf_pipeline.metric_catalogue import METRICS
from rlhf_pipeline.monitoring import MetricPoint
from rlhf_pipeline.records import Interval, RatioSums, Verdict
from rlhf_pipeline.reports.alignment import ACCURACY, CEILING, ECE, SLOPE, VERDICT
from rlhf_pipeline.reports.preferences import figures
from rlhf_pipeline.store.vote_sums import VoteCell
from rlhf_pipeline.votes.sums import DIMENSION
from rlhf_pipeline.web.preferences.queries import MIN_COMPARISONS
from rlhf_pipeline.web.site import Site

# Windows of many days: those of two days may share votes, so their difference has no interval.
WINDOWS = {
    ACCURACY: "Accuracy",
    CEILING: "Noise ceiling: accuracy of a perfect model",
    ECE: "Calibration error (ECE)",
    SLOPE: "Calibration slope: 1 is calibrated",
}
REWARD = "policy.reward"
LENGTH = "policy.length"
POLICY = {
    REWARD: "Mean score of the policy's completions",
    "policy.refusals": "Refusals and empty texts",
    LENGTH: "Length of completions",
}
METRICS_OF_DAYS = (*WINDOWS, VERDICT, *POLICY)
PREFERENCES = ("ties", "strength", "agreement", "preferred")
LABELS = {
    "undecided": "Votes for neither side",
    "strength": "Mean strength, 1 slight to 4 strong",
    "agreement": "Pairs of votes with the same choice",
    "longer": "Prefer the longer completion",
    "length_gap": "Relative length of the preferred completion",
}
VERDICTS = {0.0: Verdict.STABLE, 1.0: Verdict.WARNING, 2.0: Verdict.DRIFT}

Days = tuple[date, date]
Points = Mapping[str, MetricPoint]  # of one day, by name


def read_points(site: Site, day: date) -> dict[str, MetricPoint]:
    """The day's points by name; of several labels the one with the most observations, of the
    verdicts that of the whole report.
    """
    found = site.store.metric_points.read(METRICS_OF_DAYS, since=day, until=day)
    ordered = sorted(found, key=lambda point: point.n)
    return {
        point.name: point
        for point in ordered
        if point.name != VERDICT or point.labels.get("space") == "overall"
    }


def find_verdict(points: Points) -> Verdict | None:
    """None without a report."""
    point = points.get(VERDICT)
    if point is None:
        return None
    return Verdict.INSUFFICIENT if point.value is None else VERDICTS[point.value]


def compare_points(earlier: Points, later: Points) -> list[ComparedFigure]:
    rows = []
    for name, label in {**WINDOWS, **POLICY}.items():
        pair = _interval(earlier.get(name)), _interval(later.get(name))
        is_comparable = name in POLICY and (name != REWARD or _has_same_judge(earlier, later))
        rows.append(_build(name, label, METRICS[name].unit, *pair, is_comparable=is_comparable))
    return [row for row in rows if row.earlier or row.later]


def compare_preferences(site: Site, days: Days) -> list[ComparedFigure]:
    """The measures of the page Preferences, of the votes of each day, and withheld as there."""
    plots = [
        plot
        for name, figure in figures(site.terms().dimensions).items()
        if name in PREFERENCES
        for plot in figure.plots
    ]
    measures = [name for plot in plots for name in plot.measures]
    earlier, later = (_read_sums(site, measures, day) for day in days)
    rows = []
    for plot in plots:
        unit = "share" if plot.is_share or "length_gap" in plot.measures else ""
        for name, words in plot.measures.items():
            pair = (
                interval_of_sums(sums[name], of_shares=plot.is_share) if name in sums else None
                for sums in (earlier, later)
            )
            rows.append(_build(name, _find_label(name, words), unit, *pair))
    return [row for row in rows if row.earlier or row.later]


def _read_sums(site: Site, measures: Iterable[str], day: date) -> dict[str, RatioSums]:
    read = site.preference_sums.read(list(measures), [], VoteCell(since=day, until=day))
    return {
        name: one
        for name, found in read.by_measure.items()
        if (one := found.get(())) is not None and one.n_groups >= MIN_COMPARISONS
    }


def _find_label(name: str, words: str) -> str:
    if name in LABELS:
        return LABELS[name]
    if name.startswith(DIMENSION):
        return f"Prefer the side rated better in {words}"
    return f"Prefer the completion with {words}, where only one has it"


def _build(
    name: str,
    label: str,
    unit: str,
    earlier: Interval | None,
    later: Interval | None,
    *,
    is_comparable: bool = True,
) -> ComparedFigure:
    return ComparedFigure(
        name=name,
        label=label,
        unit=unit,
        earlier=earlier,
        later=later,
        difference=interval_of_difference(earlier, later)
        if earlier and later and is_comparable
        else None,
    )


def _interval(point: MetricPoint | None) -> Interval | None:
    if point is None or point.value is None or point.low is None or point.high is None:
        return None
    return Interval(value=point.value, low=point.low, high=point.high, n=point.n)


def _has_same_judge(earlier: Points, later: Points) -> bool:
    """A score of one reward model says nothing beside that of another."""
    judges = {
        points[REWARD].labels["reward_model"] for points in (earlier, later) if REWARD in points
    }
    return len(judges) == 1

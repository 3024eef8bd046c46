"""Reads the figures of alignment: of all votes, or of one group of them."""

from datetime import date
from functools import cache
from typing import cast
from urllib.parse import urlencode

from rlhf_pipeline.core.api_types.filters import DayFilter, GroupFilter
from rlhf_pipeline.core.errors import ConfigurationError
from rlhf_pipeline.core.monitoring import MetricPoint
from rlhf_pipeline.feedback.votes.annotator_groups import MIN_ANNOTATORS
from rlhf_pipeline.improve.loop_settings import LoopSettings
from rlhf_pipeline.learn.calibration import OverTimeParams
from rlhf_pipeline.learn.calibration.group_calibration import MIN_PAIRS
from rlhf_pipeline.learn.calibration.window_groups import ANNOTATOR_GROUP, MAX_GROUPS
from rlhf_pipeline.reports.alignment import (
    ACCURACY_METRICS,
    ALIGNMENT_METRICS,
    GROUP_METRICS,
    NO_POINTS,
    VERDICT,
    Link,
    chart_accuracy,
    chart_alignment,
)
from rlhf_pipeline.reports.chart import Chart
from rlhf_pipeline.reports.day_marks import mark_deployments, mark_taste_changes
from rlhf_pipeline.reports.words import format_count
from rlhf_pipeline.web.lists import list_sources
from rlhf_pipeline.web.problems import Problem
from rlhf_pipeline.web.site import Site
from rlhf_pipeline.web.vote_days import find_taste_changes, read_policies

OF_MODEL = [name for name in ALIGNMENT_METRICS if name != VERDICT]
GROUPINGS = {"category": "category", "source": "source", "group": ANNOTATOR_GROUP}
ONE_GROUP = (
    "Figures are measured by category, by source, or by group of annotators, not by two of them at "
    "once. Choose one and leave the others out."
)


def groups_of(filters: GroupFilter) -> dict[str, str]:
    """The chosen group of each grouping, by the name of the filter."""
    return {name: value for name in GROUPINGS if (value := getattr(filters, name)) is not None}


def _labels_of(filters: GroupFilter) -> dict[str, str]:
    """Of the metric points."""
    of_group = {
        label: value
        for name, group in groups_of(filters).items()
        for label, value in (("by", GROUPINGS[name]), ("group", group))
    }
    return of_group | ({"reward_model": filters.model} if filters.model else {})


def _require_one_group(filters: GroupFilter) -> None:
    """Raises Problem 422 for more than one."""
    groups = groups_of(filters)
    if len(groups) > 1:
        errors = [(f"query.{name}", "is one of several groups") for name in groups]
        raise Problem(422, ONE_GROUP, kind="invalid", errors=errors)


def read_window_days(site: Site) -> int | None:
    """Days of a calibration window, None while rlhf.yaml is invalid."""
    try:
        params = LoopSettings.read(site.settings, only="drift_report").params("drift_report")
    except ConfigurationError:  # the page of settings says so
        return None
    return cast(OverTimeParams, params).window_days


def build_chart(site: Site, filters: GroupFilter, *, may_read_votes: bool) -> Chart:
    """Raises Problem 422 for more than one group."""
    _require_one_group(filters)
    first, last = filters.resolve(_find_newest_day(site, filters))
    read = filters.model_copy(update={"since": first, "until": last})
    points = _read_points(site, read)
    if filters.since is None:
        first = min((point.day for point in points), default=first)

    return chart_alignment(
        points,
        first,
        last,
        # votes cannot be listed by group of annotators
        _build_link(filters) if may_read_votes and filters.group is None else None,
        find_taste_changes(site.store),
        window_days=read_window_days(site),
        group=next(iter(groups_of(filters).values()), None),
        no_points=_explain_absence(site, filters),
    )


def build_accuracy(site: Site, days: DayFilter, *, may_read_votes: bool) -> Chart:
    filters = GroupFilter(since=days.since, until=days.until)
    newest, _ = site.store.metric_points.page(ACCURACY_METRICS, limit=1)
    first, last = days.resolve(newest[0].day if newest else None, n_days=30)
    points = site.store.metric_points.read(ACCURACY_METRICS, since=first, until=last)
    if days.since is None:
        first = min((point.day for point in points), default=first)
    policies = mark_deployments(
        {"policy": read_policies(site.store, first, last)}, "policy changed"
    )
    return chart_accuracy(
        points,
        first,
        last,
        [*mark_taste_changes(find_taste_changes(site.store)), *policies],
        read_window_days(site),
        _build_link(filters) if may_read_votes else None,
    )


def read_newest(site: Site, filters: GroupFilter) -> tuple[date | None, dict[str, MetricPoint]]:
    """The newest day with figures, and these, by name as those of all votes."""
    names = [*GROUP_METRICS] if groups_of(filters) else OF_MODEL
    labels = _labels_of(filters)
    newest, _ = site.store.metric_points.page(
        names, since=filters.since, until=filters.until, labels=labels, limit=1
    )
    if not newest:
        return None, {}
    day = newest[0].day
    points = site.store.metric_points.read(names, since=day, until=day, labels=labels)
    return day, {GROUP_METRICS.get(point.name, point.name): point for point in points}


def choices_of_filters(site: Site) -> dict[str, list[str]]:
    """The values that each filter offers."""
    latest = site.store.metric_points.latest(OF_MODEL)
    return {
        "model": sorted({point.labels["reward_model"] for point in latest}),
        "category": site.store.comparisons.values_of("category"),
        "source": list_sources(site),
        "group": sorted(site.group_sizes()),
    }


def _find_newest_day(site: Site, filters: GroupFilter) -> date | None:
    """The newest day with figures of the chosen model or group, whatever the chosen days."""
    names = [*GROUP_METRICS] if groups_of(filters) else ALIGNMENT_METRICS
    newest, _ = site.store.metric_points.page(names, labels=_labels_of(filters), limit=1)
    return newest[0].day if newest else None


def _build_link(filters: GroupFilter) -> Link:
    """From days to their votes."""

    @cache  # every series has the same days
    def link(first: date, last: date) -> str:
        days = {"day": last} if first == last else {"since": first, "until": last}
        return f"/votes?{urlencode(days | groups_of(filters))}"

    return link


def _read_points(site: Site, filters: GroupFilter) -> list[MetricPoint]:
    """Of a group its figures; else with a model, its figures and the verdicts of its days."""
    names = [*GROUP_METRICS] if groups_of(filters) else ALIGNMENT_METRICS
    labels = _labels_of(filters) if groups_of(filters) else None
    since, until = filters.since, filters.until
    points = site.store.metric_points.read(names, since=since, until=until, labels=labels)
    if groups_of(filters) or filters.model is None:
        return points
    of_model = [point for point in points if point.labels.get("reward_model") == filters.model]
    its_days = {point.day for point in of_model}
    return of_model + [p for p in points if p.name == VERDICT and p.day in its_days]


def _explain_absence(site: Site, filters: GroupFilter) -> str:
    if not groups_of(filters):
        return NO_POINTS
    if filters.group is not None:
        n_people = site.group_sizes().get(filters.group, 0)
        if n_people < MIN_ANNOTATORS:
            counted = format_count(n_people, "annotator")
            return (
                f"Withheld: the group {filters.group!r} has {counted}; at least {MIN_ANNOTATORS} "
                "are needed."
            )
    ((name, group),) = groups_of(filters).items()
    people = f" and {MIN_ANNOTATORS} annotators" if name == "group" else ""
    return (
        f"No figures of {name} {group!r} in these days. Each day's drift report writes those of "
        f"the {MAX_GROUPS} largest groups that have at least {MIN_PAIRS} judged comparisons"
        f"{people} in its calibration window."
    )

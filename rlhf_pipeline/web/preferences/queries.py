"""Reads what people prefer as charts, and which filters have votes."""

from collections.abc import Mapping
from datetime import date
from typing import Literal
from urllib.parse import urlencode

from pydantic import Field

from rlhf_pipeline.core.api_types.filters import DayFilter, GroupFilter
from rlhf_pipeline.core.records import RatioSums
from rlhf_pipeline.feedback.votes.annotator_groups import MIN_ANNOTATORS
from rlhf_pipeline.reports.chart import Chart
from rlhf_pipeline.reports.day_marks import mark_deployments, mark_taste_changes
from rlhf_pipeline.reports.preferences import Figure, Link, chart_by_day, chart_by_group, figures
from rlhf_pipeline.reports.words import format_count
from rlhf_pipeline.web.lists import list_sources
from rlhf_pipeline.web.permissions import Permission, Principal
from rlhf_pipeline.web.preferences.sums_reader import COUNTED
from rlhf_pipeline.web.site import Site
from rlhf_pipeline.web.vote_days import find_taste_changes, read_policies

PreferenceGrouping = Literal["day", "category", "source", "group"]
COLUMNS: dict[PreferenceGrouping, str] = {
    "day": "day",
    "category": "category",
    "source": "source",
    "group": "annotator_group",
}
TEXTS = "preferred"  # the chart that reads the texts
MIN_COMPARISONS = 20  # fewer would say more about a few comparisons than about a group
WITHHELD = f"figures of fewer than {MIN_COMPARISONS} comparisons are withheld"
WITHHELD_DAYS = f"days with fewer than {MIN_COMPARISONS} comparisons are withheld"
WITHHELD_PEOPLE = (
    f"days on which fewer than {MIN_ANNOTATORS} annotators of the group voted are withheld"
)


class PreferenceFilter(GroupFilter):
    """Which votes, and what a chart of them compares."""

    by: PreferenceGrouping = Field(default="day", description="What the chart compares.")


def build_chart(site: Site, principal: Principal, name: str, filters: PreferenceFilter) -> Chart:
    by = filters.by
    figures_by_name = figures(site.terms().dimensions)
    figure = figures_by_name[name]
    first, last = filters.resolve(_find_newest_day(site))
    chosen, reader = filters.model_copy(update={"since": first, "until": last}), site.preferences
    notes: list[str] = []
    if filters.group is not None and by not in ("category", "source"):
        n_people = sum(reader.count_voters("annotator_group", chosen).values())
        if n_people < MIN_ANNOTATORS:
            note = (
                f"Withheld: {format_count(n_people, 'annotator')} of the group {filters.group!r} "
                f"voted in this selection; at least {MIN_ANNOTATORS} are needed."
            )
            return chart_by_group(figure, by, {}, {}, [note])
    link = _build_link(filters, first, last) if principal.may(Permission.VOTES_READ) else None
    all_sums = reader.sums(_read_together(figures_by_name, name), COLUMNS[by], chosen)
    sums = {
        measure: all_sums[measure] for measure in (COUNTED, *figure.measures) if measure in all_sums
    }
    large = {
        measure: {
            name: ratio for name, ratio in by_place.items() if ratio.n_groups >= MIN_COMPARISONS
        }
        for measure, by_place in sums.items()
    }
    drawn = {name for measure in figure.measures for name in large.get(measure, {})}
    people: dict[str, int] = {}
    if by == "group" or filters.group is not None:
        voters = reader.count_voters(COLUMNS[by], chosen)
        people = {name: voters.get(name, 0) for name in drawn}
    if by == "day":
        n_comparisons = [
            ratio.n_groups for by_place in sums.values() for ratio in by_place.values()
        ]
        if any(0 < n < MIN_COMPARISONS for n in n_comparisons):
            notes.append(WITHHELD_DAYS)
        of_few = {day for day, n_people in people.items() if n_people < MIN_ANNOTATORS}
        if of_few:
            notes.append(WITHHELD_PEOPLE)
        large = {
            measure: {day: ratio for day, ratio in by_day.items() if day not in of_few}
            for measure, by_day in large.items()
        }
        if filters.since is None:
            days = [date.fromisoformat(day) for day in sums.get(COUNTED, {})]
            first = min(days, default=first)
        marks = (
            *mark_taste_changes(find_taste_changes(site.store)),
            *mark_deployments(
                {"policy": read_policies(site.store, first, last)}, name="policy changed"
            ),
        )
        return chart_by_day(figure, large, first, last, notes=notes, marks=marks, link=link)
    small = _find_small(figure, sums, people)
    if sums.get(COUNTED):
        notes = [WITHHELD]
    elif filters.group is not None:
        notes = [f"No votes of the group {filters.group!r} match. Widen the other filters."]
    return chart_by_group(figure, by, large, small, notes, link)


def choices_of_filters(site: Site, filters: PreferenceFilter) -> dict[str, list[str]]:
    """The values that each filter offers; models of the shown days."""
    day_filter = _choose_days(site, filters)
    measures = _read_together(figures(site.terms().dimensions), "choices")
    models = site.preferences.sums(measures, "model_version", day_filter)
    return {
        "category": site.store.comparisons.values_of("category"),
        "source": list_sources(site),
        "group": sorted(site.group_sizes()),
        "model": sorted(models.get(COUNTED, {})),
    }


def read_ahead(site: Site) -> None:
    """Count the days of the charts without filters, so that the first reader does not wait."""
    figures_by_name = figures(site.terms().dimensions)
    day_filter = _choose_days(site, DayFilter())
    for name in ("choices", TEXTS):
        site.preferences.sums(_read_together(figures_by_name, name), "day", day_filter)


def _read_together(figures_by_name: Mapping[str, Figure], name: str) -> list[str]:
    """The measures that one look at the votes counts: all of a page's charts but that of texts,
    which takes as long again.
    """
    charts = [
        figure for figure in figures_by_name.values() if (figure.name == TEXTS) == (name == TEXTS)
    ]
    return list(dict.fromkeys([COUNTED, *(m for chart in charts for m in chart.measures)]))


def _build_link(filters: PreferenceFilter, first: date, last: date) -> Link | None:
    """From a day or group to its votes, which cannot be listed by group of annotators or model."""
    by = filters.by
    if by == "group" or filters.group is not None or filters.model is not None:
        return None
    more = filters.comparison_groups
    days = {} if by == "day" else {"since": first, "until": last}
    return lambda name: f"/votes?{urlencode({by: name} | more | days)}"


def _choose_days(site: Site, days: DayFilter) -> GroupFilter:
    """All votes of the days that are shown."""
    first, last = days.resolve(_find_newest_day(site))
    return GroupFilter(since=first, until=last)


def _find_newest_day(site: Site) -> date | None:
    newest = max(site.day_figures.days(), default=None)
    return date.fromisoformat(newest) if newest else None


def _find_small(
    figure: Figure,
    sums: Mapping[str, Mapping[str, RatioSums]],
    people: Mapping[str, int],
) -> dict[str, str]:
    """Why a group is withheld, by its name. `people` is the number of annotators of each that may
    have too few.
    """
    small = {}
    for name in sums.get(COUNTED, {}):
        measured = [sums[m][name] for m in figure.measures if name in sums.get(m, {})]
        n = round(max((ratio.n_groups for ratio in measured), default=0))
        if n <= 0:
            continue
        n_people = people.get(name, MIN_ANNOTATORS)
        if n_people < MIN_ANNOTATORS:
            small[name] = f"{format_count(n_people, 'annotator')}: too few"
        elif n < MIN_COMPARISONS:
            small[name] = f"{format_count(n, 'comparison')}: too few"
    return small

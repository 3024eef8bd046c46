"""Reads sums and voters of the days that a chart shows."""

from collections import defaultdict
from collections.abc import Iterable, Sequence
from datetime import date
from typing import Any

from rlhf_pipeline.core.api_types.filters import GroupFilter
from rlhf_pipeline.core.records import RatioSums
from rlhf_pipeline.store import Store
from rlhf_pipeline.store.preferences import PreferenceCell
from rlhf_pipeline.web.memory_cache import DayFigures

COUNTED = "choice.skip"  # the measure that counts every vote
Sums = dict[str, dict[str, RatioSums]]  # by measure and value of a column


class PreferenceReader:
    """Answers from days counted once, and those that votes changed since."""

    def __init__(self, store: Store, figures: DayFigures):
        self._store = store
        self._figures = figures

    def sums(self, measures: Sequence[str], by: str, chosen: GroupFilter) -> Sums:
        """By the field `by` of PreferenceCell."""
        by_group = by == "annotator_group" or chosen.group is not None
        totals: dict[str, dict[str, RatioSums]] = defaultdict(dict)

        def count(days: Sequence[str]) -> dict[str, list[Any]]:
            sums = self._store.preferences.sums(measures, days, by_group=by_group)
            return _group_by_day(sums.items())

        for cell, sums in self._read(("sums", *measures, by_group), chosen, count):
            place = getattr(cell, by)
            for measure, ratio in sums.items():
                total = totals[measure].get(place)
                totals[measure][place] = (
                    ratio if total is None else RatioSums(*map(sum, zip(total, ratio, strict=True)))
                )
        return totals

    def count_voters(self, by: str, chosen: GroupFilter) -> dict[str, int]:
        """Annotators with a vote other than a skip, by the field `by` of PreferenceCell."""
        voters: dict[str, set[str]] = defaultdict(set)

        def count(days: Sequence[str]) -> dict[str, list[Any]]:
            return _group_by_day(self._store.preferences.voters(days))

        for cell, annotator_id in self._read(("voters",), chosen, count):
            voters[getattr(cell, by)].add(annotator_id)
        return {place: len(people) for place, people in voters.items()}

    def _read(self, kind: tuple[Any, ...], chosen: GroupFilter, count: Any) -> list[Any]:
        groups = frozenset(self._store.annotator_groups.all().items())
        days = [day for day in self._figures.days() if chosen.includes(date.fromisoformat(day))]
        rows_by_day = self._figures.read((*kind, groups), days, count)
        return [row for rows in rows_by_day.values() for row in rows if _is_of(row[0], chosen)]


def _is_of(cell: PreferenceCell, chosen: GroupFilter) -> bool:
    return (
        chosen.category in (None, cell.category)
        and chosen.source in (None, cell.source)
        and chosen.group in (None, cell.annotator_group)
        and chosen.model in (None, cell.model_version)
    )


def _group_by_day(rows: Iterable[tuple[PreferenceCell, Any]]) -> dict[str, list[Any]]:
    by_day: dict[str, list[Any]] = defaultdict(list)
    for row in rows:
        by_day[row[0].day].append(row)
    return by_day

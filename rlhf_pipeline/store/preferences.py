"""Sums of the counting votes of days: what people prefer, as one GROUP BY over comparisons.

Votes on one comparison resemble each other, so the sums also hold squares and products over
comparisons, from which `intervals.interval_of_sums` makes the interval. Sums of cells and days add
up.
"""

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from sqlalchemy import ColumnElement, Subquery, and_, case, func, literal, or_, select

from rlhf_pipeline.core.records import (
    AGREEMENT,
    DIMENSION,
    OWN_SOURCE,
    AnnotatorKind,
    Choice,
    RatioSums,
)
from rlhf_pipeline.store.conversion import json_of
from rlhf_pipeline.store.counting import LATEST, is_counting
from rlhf_pipeline.store.engine import Repository
from rlhf_pipeline.store.schema import annotator_groups, comparisons, votes

SEVERAL = "several"  # models, of a comparison between two
EVERYBODY = ""  # group of the sums over all annotators
SIDES = (Choice.A.value, Choice.B.value)
Condition = ColumnElement[bool]
Number = ColumnElement[float]
Ratio = tuple[Number, Number]


class PreferenceCell(NamedTuple):
    """Votes of one day by one group on comparisons of one kind."""

    day: str
    annotator_group: str
    category: str
    source: str
    model_version: str


class Preferences(Repository):
    """Reads sums and voters of whole days; people's votes that count now."""

    def sums(
        self, measures: Sequence[str], days: Sequence[str], *, by_group: bool
    ) -> dict[PreferenceCell, dict[str, RatioSums]]:
        """Sums of each measure by cell; without `by_group` the group is EVERYBODY."""
        counted = _select_counted(days, by_group=by_group)
        keys = [counted.c[name] for name in (*PreferenceCell._fields, "comparison_id")]
        sides = [_count(counted.c.choice == side).label(side) for side in SIDES]
        ratios = {name: pair for name in measures if (pair := _measure(counted.c, name))}
        by_comparison = (
            select(*keys, *sides, *_label(ratios, measures))
            .group_by(*keys)
            .subquery("by_comparison")
        )
        texts = {n: _measure_texts(by_comparison.c, n) for n in measures if n not in ratios}
        inner = (
            select(by_comparison, *_label(texts, measures))
            .join(comparisons, comparisons.c.comparison_id == by_comparison.c.comparison_id)
            .cte("inner")
            .prefix_with("MATERIALIZED")  # else each sum below reads the texts again
        )
        sums = []
        for i in range(len(measures)):
            n, total = inner.c[f"n{i}"], inner.c[f"total{i}"]
            values = (case((n > 0, 1.0), else_=0.0), n, total, n * n, n * total, total * total)
            sums += [func.sum(value) for value in values]
        cell = [inner.c[name] for name in PreferenceCell._fields]
        width = len(RatioSums._fields)
        cells = {}
        for row in self._database.fetch_all(select(*cell, *sums).group_by(*cell)):
            numbers = [float(number) for number in row[len(cell) :]]
            cells[PreferenceCell(*row[: len(cell)])] = {
                name: RatioSums(*numbers[width * i : width * (i + 1)])
                for i, name in enumerate(measures)
                if numbers[width * i]
            }
        return cells

    def voters(self, days: Sequence[str]) -> list[tuple[PreferenceCell, str]]:
        """Cells of groups with their annotators, skips left out."""
        counted = _select_counted(days, by_group=True).c
        keys = [counted[name] for name in (*PreferenceCell._fields, "annotator_id")]
        query = select(*keys).where(counted.choice != Choice.SKIP.value).distinct()
        return [(PreferenceCell(*row[:-1]), row[-1]) for row in self._database.fetch_all(query)]


def _select_counted(days: Sequence[str], *, by_group: bool) -> Subquery:
    of, a = comparisons.c, comparisons.c.model_version_a
    group = func.coalesce(annotator_groups.c.name, votes.c.origin)
    cell = {
        "day": votes.c.day,
        "annotator_group": group if by_group else literal(EVERYBODY),
        "category": of.category,
        "source": func.coalesce(of.source, OWN_SOURCE),
        "model_version": case((a == of.model_version_b, a), else_=SEVERAL),
    }
    return (
        select(
            *(cell[name].label(name) for name in PreferenceCell._fields),
            *(votes.c[name] for name in ("comparison_id", "annotator_id", "choice", "strength")),
            *(votes.c[name] for name in ("is_swapped", "details")),
            of.repeat_of,
        )
        .join(comparisons, of.comparison_id == votes.c.comparison_id)
        .outerjoin(annotator_groups, annotator_groups.c.annotator_id == votes.c.annotator_id)
        .where(
            votes.c.day.in_(days),
            votes.c.annotator_kind != AnnotatorKind.MACHINE.value,
            is_counting(LATEST),
        )
        .subquery()
    )


def _label(ratios: Mapping[str, Ratio], measures: Sequence[str]) -> list[ColumnElement[Any]]:
    """Named by place: names of dimensions may be too long for a column."""
    return [
        column.label(f"{part}{measures.index(name)}")
        for name, ratio in ratios.items()
        for part, column in zip(("n", "total"), ratio, strict=True)
    ]


def _measure(of: Any, name: str) -> Ratio | None:
    """Number and total of the values of a comparison's votes in a cell, None for a measure of
    texts; `of`: the columns of `_select_counted`.
    """
    choice = of.choice
    is_judging, is_sided = choice != Choice.SKIP.value, choice.in_(SIDES)
    if name == AGREEMENT:  # of pairs of votes on one comparison, as `votes.agreement` counts them
        is_first = and_(is_judging, of.repeat_of.is_(None))
        same = [_pairs(and_(is_first, choice == side.value)) for side in Choice]
        return _pairs(is_first), sum(same[1:], same[0])
    if name == "choice.skip":
        return _share(literal(1) == 1, ~is_judging)
    if name.startswith("choice."):
        return _share(is_judging, choice == name.removeprefix("choice."))
    if name == "undecided":
        return _share(is_judging, ~is_sided)
    if name == "left":
        a_is_left = and_(choice == Choice.A.value, of.is_swapped.is_(False))
        b_is_left = and_(choice == Choice.B.value, of.is_swapped.is_(True))
        return _share(and_(is_sided, of.is_swapped.is_not(None)), or_(a_is_left, b_is_left))
    if name == "strength":
        is_stated = and_(is_sided, of.strength.is_not(None))
        return _count(is_stated), _total(is_stated, of.strength * 1.0)
    if name.startswith(DIMENSION):
        rated = {side: _rates(of.details, name.removeprefix(DIMENSION), side) for side in SIDES}
        better = or_(*(and_(choice == side, rates) for side, rates in rated.items()))
        return _share(and_(is_sided, or_(*rated.values())), better)
    return None


def _measure_texts(of: Any, name: str) -> Ratio:
    """Of the lengths of the two sides. `of` has the number of votes for each side."""
    long_a, long_b = (
        func.length(comparisons.c.completion_a),
        func.length(comparisons.c.completion_b),
    )
    n_a, n_b, longer = of.a, of.b, long_a - long_b
    if name == "length_gap":  # by how much the preferred one is longer, over the longer one's
        longest = case((long_a > long_b, long_a), (long_b > 0, long_b), else_=1)
        return n_a + n_b, (n_a - n_b) * longer / longest
    preferred = case((longer > 0, n_a), (longer < 0, n_b), else_=0.0)
    return case((longer != 0, n_a + n_b), else_=0.0), preferred


def _rates(details: ColumnElement[str], dimension: str, side: str) -> Condition:
    # as in the JSON of the details, where quotes inside of a value are escaped
    pair = json_of({dimension: side}, "The dimension")[1:-1]
    dimensions: ColumnElement[str] = details
    for sign in "+-":  # a highlight has a side too, and its sign after it
        dimensions = func.replace(dimensions, f'{pair},"sign":"{sign}"', "")
    return and_(details.is_not(None), _contains(dimensions, pair))


def _contains(text: ColumnElement[str], part: str) -> Condition:
    condition: Condition = func.replace(text, part, "") != text
    return condition


def _share(counts: Condition, is_positive: Condition) -> Ratio:
    return _count(counts), _count(and_(counts, is_positive))


def _count(condition: Condition) -> Number:
    return _total(condition, literal(1.0))


def _total(condition: Condition, value: ColumnElement[Any]) -> Number:
    return func.sum(case((condition, value), else_=0.0))


def _pairs(condition: Condition) -> Number:
    n = _count(condition)
    return n * (n - 1.0) / 2.0

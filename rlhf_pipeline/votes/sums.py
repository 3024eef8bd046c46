"""Sums of votes by day, category, source, annotator group and model: what people prefer.

Each measure is a mean over votes: `total` of `n`. Votes on one comparison resemble each other, so
the sums also hold squares and products over comparisons, from which `intervals.interval_of_sums`
makes the interval. All sums add up: over days, categories, sources, models and later votes.
"""

import json
from collections import Counter
from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np
import numpy.typing as npt
import pandas as pd

from rlhf_pipeline.records import OWN_SOURCE, AnnotatorCell, Choice, RatioSums
from rlhf_pipeline.votes.annotator_groups import name_annotator_groups
from rlhf_pipeline.votes.counting import counting, drop_machine_votes

CELL = ["annotator_group", "category", "source", "model_version", "day"]
KEY = ["measure", *CELL]
SUMS = list(RatioSums._fields)

SEVERAL = "several"  # models, of a comparison between two
# The group in which all votes are summed once more; and the category, source and model of the sums
# of all of them, so that what is asked most reads few rows.
ALL = ""
AGREEMENT = "agreement"
DIMENSION = "dimension."
STYLES = {
    "lists": r"(?m)^\s*(?:[-*•]|\d{1,3}[.)])\s",
    "headings": r"(?m)^#{1,6}\s",
    "code": r"```|`[^`\n]+`",
}
COPIES = 4  # of a vote: in its group and for everybody, in its cell and for all
Array = npt.NDArray[Any]
Ints = npt.NDArray[np.int64]
Floats = npt.NDArray[np.float64]


def select_counted(votes: pd.DataFrame) -> pd.DataFrame:
    """The counting votes of people among VOTES. Raises FrameError."""
    return drop_machine_votes(counting(votes))


def sum_votes(
    counted: pd.DataFrame, comparisons: pd.DataFrame, groups: Mapping[str, str]
) -> pd.DataFrame:
    """KEY and SUMS of the votes that `select_counted` returned.

    `comparisons` has the COMPARISONS of these votes, `groups` the group of each annotator, by
    default the vote's origin. Give all votes on a comparison or none: pairs of them measure
    agreement.
    """
    if counted.empty:
        return pd.DataFrame(columns=[*KEY, *SUMS])
    of = comparisons.set_index("comparison_id")
    place = of.index.get_indexer(counted["comparison_id"])
    cells = _describe_cells(counted, of.iloc[place], groups)
    # For everybody too, not as the sum of the groups: their votes on one comparison are alike.
    cells = pd.concat([cells, cells.assign(annotator_group=ALL)])
    whole = cells.assign(category=ALL, source=ALL, model_version=ALL)
    cell, known_cells = _number_rows(pd.concat([cells, whole], ignore_index=True))
    unit = cell * len(of) + np.tile(place, COPIES)  # a comparison in a cell
    sides = _compare_sides(of).iloc[place].reset_index(drop=True)
    names, parts = [], []
    for name, mask, value in _iter_measures(counted, sides):
        index = np.flatnonzero(np.tile(mask, COPIES))
        total = np.tile(np.asarray(value, dtype=float), COPIES)[index]
        names.append(name)
        parts.append(_sum_by(unit[index], np.ones(len(index)), total))
    names.append(AGREEMENT)
    parts.append(_sum_pairs(unit, counted))
    summed = [
        _sum_over_comparisons(units // len(of), n, total).assign(measure=name)
        for name, (units, n, total) in zip(names, parts, strict=True)
        if len(units)
    ]
    together = pd.concat(summed, ignore_index=True)
    return together.join(known_cells, on="cell")[[*KEY, *SUMS]]


def count_by_annotator(counted: pd.DataFrame, comparisons: pd.DataFrame) -> Counter[AnnotatorCell]:
    """Number of votes other than skips of each cell. Arguments as in `sum_votes`."""
    judging = counted[counted["choice"] != Choice.SKIP]
    kinds = _describe_kinds(comparisons.set_index("comparison_id").loc[judging["comparison_id"]])
    columns = (judging["annotator_id"].tolist(), judging["day"].tolist(), *kinds.values())
    return Counter(map(AnnotatorCell._make, zip(*columns, strict=True)))


def subtract_sums(after: pd.DataFrame, before: pd.DataFrame) -> pd.DataFrame:
    """What to add to `before` for `after`; rows that do not change are left out."""
    change = (
        after.set_index(KEY)[SUMS]
        .astype(float)
        .sub(before.set_index(KEY)[SUMS].astype(float), fill_value=0.0)
    )
    return change[(change != 0).any(axis=1)].reset_index()


def _describe_cells(
    votes: pd.DataFrame, comparisons: pd.DataFrame, groups: Mapping[str, str]
) -> pd.DataFrame:
    return pd.DataFrame(
        {
            "annotator_group": name_annotator_groups(votes, groups),
            **_describe_kinds(comparisons),
            "day": votes["day"].to_numpy(dtype=object),
        },
        dtype=object,
    )


def _describe_kinds(comparisons: pd.DataFrame) -> dict[str, Array]:
    """Category, source and model version of each comparison."""
    a, b = (comparisons[f"model_version_{side}"].to_numpy(dtype=object) for side in "ab")
    source = comparisons["source"].to_numpy(dtype=object)
    return {
        "category": comparisons["category"].to_numpy(dtype=object),
        "source": np.where(pd.isna(source), OWN_SOURCE, source),
        "model_version": np.where(a == b, a, SEVERAL),
    }


def _number_rows(rows: pd.DataFrame) -> tuple[Ints, pd.DataFrame]:
    """The number of each row among the different ones, and these."""
    number = np.zeros(len(rows), dtype=np.int64)
    for name in rows:
        codes, values = pd.factorize(rows[name])
        number = np.unique(number * len(values) + codes, return_inverse=True)[1]
    first = np.unique(number, return_index=True)[1]
    return number.astype(np.int64), rows.iloc[first].reset_index(drop=True)


def _compare_sides(comparisons: pd.DataFrame) -> pd.DataFrame:
    """By comparison: which side is longer or has a trait of style: 1 for a, -1 for b, 0 for
    neither; `gap` is by how much a is longer, over the longer one's length.
    """
    a, b = comparisons["completion_a"], comparisons["completion_b"]
    length_a, length_b = (text.str.len().to_numpy(dtype=float) for text in (a, b))
    gap = (length_a - length_b) / np.maximum(1.0, np.maximum(length_a, length_b))
    traits = {
        f"style.{name}": a.str.contains(pattern).astype(int).to_numpy()
        - b.str.contains(pattern).astype(int).to_numpy()
        for name, pattern in STYLES.items()
    }
    return pd.DataFrame({"longer": np.sign(gap), "gap": gap, **traits}, index=comparisons.index)


def _iter_measures(
    votes: pd.DataFrame, sides: pd.DataFrame
) -> Iterator[tuple[str, "npt.NDArray[np.bool_]", Array]]:
    """Each measure's name, the votes that it counts, and its value for each vote."""
    choice = votes["choice"].to_numpy(dtype=object)
    is_judging = choice != Choice.SKIP
    yield "choice.skip", np.ones(len(votes), dtype=bool), ~is_judging
    for name in (Choice.A, Choice.B, Choice.TIE, Choice.BOTH_BAD):
        yield f"choice.{name}", is_judging, choice == name
    is_sided = (choice == Choice.A) | (choice == Choice.B)
    yield "undecided", is_judging, ~is_sided
    preferred = np.where(choice == Choice.A, 1.0, -1.0)
    is_swapped = votes["is_swapped"].to_numpy(dtype=float, na_value=np.nan)
    yield "left", is_sided & ~np.isnan(is_swapped), (preferred > 0) != (is_swapped == 1)
    strength = votes["strength"].to_numpy(dtype=float, na_value=np.nan)
    yield "strength", is_sided & ~np.isnan(strength), strength
    yield "length_gap", is_sided, preferred * sides["gap"].to_numpy()
    for name in sides.columns.drop("gap"):
        side = sides[name].to_numpy(dtype=float)
        yield name, is_sided & (side != 0), side == preferred
    yield from _iter_dimensions(votes["dimensions"], is_sided, choice)


def _iter_dimensions(
    dimensions: pd.Series, is_sided: "npt.NDArray[np.bool_]", choice: Array
) -> Iterator[tuple[str, "npt.NDArray[np.bool_]", Array]]:
    """How often the side that is better in a dimension is the preferred one."""
    rated = [
        (i, json.loads(text))
        for i, text in enumerate(dimensions.tolist())
        if isinstance(text, str) and is_sided[i]
    ]
    for name in sorted({name for _, one in rated for name in one}):
        better = np.full(len(choice), "", dtype=object)
        for i, one in rated:
            better[i] = one.get(name, "")
        mask = (better == Choice.A) | (better == Choice.B)
        yield DIMENSION + name, mask, better == choice


def _sum_pairs(unit: Ints, votes: pd.DataFrame) -> tuple[Ints, Floats, Floats]:
    """By unit: pairs of votes and, as their total, those with the same choice; as `votes.agreement`
    counts them.
    """
    choices, names = pd.factorize(votes["choice"])
    is_first = (votes["choice"] != Choice.SKIP) & votes["repeat_of"].isna()
    index = np.flatnonzero(np.tile(is_first.to_numpy(dtype=bool), COPIES))
    by_choice = unit[index] * len(names) + np.tile(choices, COPIES)[index]
    chosen, counts = np.unique(by_choice, return_counts=True)
    same = counts * (counts - 1) / 2
    units, n, total = _sum_by(chosen // len(names), counts.astype(float), same)
    pairs = n * (n - 1) / 2
    return units[pairs > 0], pairs[pairs > 0], total[pairs > 0]


def _sum_by(unit: Ints, *columns: Floats) -> tuple[Any, ...]:
    """The different units in order, and the sums of each column."""
    units, index = np.unique(unit, return_inverse=True)
    return units, *(np.bincount(index, weights=one, minlength=len(units)) for one in columns)


def _sum_over_comparisons(cell: Ints, n: Floats, total: Floats) -> pd.DataFrame:
    ones = np.ones(len(n))
    cells, *sums = _sum_by(cell, ones, n, total, n * n, n * total, total * total)
    return pd.DataFrame({"cell": cells, **dict(zip(SUMS, sums, strict=True))})

"""Sums of votes by day, category, source, annotator group and model: what people prefer.

Each measure is a mean over votes: `total` of `n`. Votes on one comparison resemble each other, so
the sums also hold squares and products over comparisons, from which `intervals.interval_of_sums`
makes the interval. All sums add up: over days, groups and later votes.
"""

import json
from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np
import numpy.typing as npt
import pandas as pd

from rlhf_pipeline.intervals import RatioSums
from rlhf_pipeline.records import Choice
from rlhf_pipeline.votes.counting import counting, drop_machine_votes

VERSION = 1  # of the measures: another one counts all votes again
CELL = ["day", "category", "source", "annotator_group", "model_version"]
KEY = ["measure", *CELL]
SUMS = list(RatioSums._fields)

OWN_SOURCE = "this project"  # of comparisons that were not imported
SEVERAL = "several"  # models, of a comparison between two
SEVERAL_GROUPS = ""  # of a pair of votes from two groups
AGREEMENT = "agreement"
DIMENSION = "dimension."
STYLES = {
    "lists": r"(?m)^\s*(?:[-*•]|\d{1,3}[.)])\s",
    "headings": r"(?m)^#{1,6}\s",
    "code": r"```|`[^`\n]+`",
}
Array = npt.NDArray[Any]


def sum_votes(
    votes: pd.DataFrame, comparisons: pd.DataFrame, groups: Mapping[str, str]
) -> pd.DataFrame:
    """KEY and SUMS of the counting votes of people among VOTES.

    `comparisons` has the COMPARISONS of these votes, `groups` the group of each annotator. Give all
    votes on a comparison or none: pairs of them measure agreement. Raises FrameError.
    """
    counted = drop_machine_votes(counting(votes))
    if counted.empty:
        return pd.DataFrame(columns=[*KEY, *SUMS])
    of = comparisons.set_index("comparison_id")
    place = of.index.get_indexer(counted["comparison_id"])
    rows = _describe_cells(counted, of.iloc[place], groups)
    parts = list(_iter_measures(counted, _compare_sides(of).iloc[place].reset_index(drop=True)))
    together = pd.concat(
        [
            *(
                rows[mask].assign(measure=name, n=1.0, total=np.asarray(value, dtype=float)[mask])
                for name, mask, value in parts
                if mask.any()
            ),
            _sum_pairs(rows, counted),
        ]
    )
    return _sum_over_comparisons(together)


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
    a, b = (comparisons[f"model_version_{side}"].to_numpy(dtype=object) for side in "ab")
    return pd.DataFrame(
        {
            "comparison_id": votes["comparison_id"].to_numpy(dtype=object),
            "day": votes["day"].to_numpy(dtype=object),
            "category": comparisons["category"].to_numpy(dtype=object),
            "source": comparisons["source"].fillna(OWN_SOURCE).to_numpy(dtype=object),
            "annotator_group": votes["annotator_id"].map(groups).to_numpy(dtype=object),
            "model_version": np.where(a == b, a, SEVERAL),
        }
    )


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


def _sum_pairs(rows: pd.DataFrame, votes: pd.DataFrame) -> pd.DataFrame:
    """Pairs of a day's votes on one comparison and, as their total, those with the same choice; as
    `votes.agreement` counts them. Pairs from two groups belong to SEVERAL_GROUPS.
    """
    is_first = (votes["choice"] != Choice.SKIP) & votes["repeat_of"].isna()
    first = rows.assign(choice=votes["choice"].to_numpy(dtype=object))[is_first.to_numpy()]
    by = ["comparison_id", *CELL]
    shared = [name for name in by if name != "annotator_group"]
    within = _count_pairs(first, by)
    across = _count_pairs(first, shared).join(within.groupby(level=shared).sum(), rsuffix="_within")
    for name in ("n", "total"):
        across[name] -= across.pop(f"{name}_within")
    found = pd.concat(
        [within.reset_index(), across.reset_index().assign(annotator_group=SEVERAL_GROUPS)]
    )
    return found[found["n"] > 0].assign(measure=AGREEMENT)


def _count_pairs(votes: pd.DataFrame, by: list[str]) -> pd.DataFrame:
    per_choice = votes.groupby([*by, "choice"]).size()
    all_votes = per_choice.groupby(level=by).sum()
    same = (per_choice * (per_choice - 1) / 2).groupby(level=by).sum()
    return pd.DataFrame({"n": all_votes * (all_votes - 1) / 2, "total": same})


def _sum_over_comparisons(rows: pd.DataFrame) -> pd.DataFrame:
    of = rows.groupby([*KEY, "comparison_id"], as_index=False, sort=False)[["n", "total"]].sum()
    n, total = of["n"], of["total"]
    squares = of.assign(
        n_groups=1.0, n_squares=n * n, products=n * total, total_squares=total * total
    )
    return squares.groupby(KEY, as_index=False)[SUMS].sum()

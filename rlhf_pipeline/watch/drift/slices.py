"""Error rates of slices of votes: category, source, length gap, annotator, model version."""

from collections.abc import Iterator

import numpy as np
import pandas as pd
from pydantic import Field

from rlhf_pipeline.core.errors import FrameError
from rlhf_pipeline.core.frames import REFLECTIONS, check_frame
from rlhf_pipeline.core.intervals import interval_of_ratio, interval_of_share
from rlhf_pipeline.core.records import OWN_SOURCE, Interval, Record
from rlhf_pipeline.watch.drift.clusters import ClusterParams
from rlhf_pipeline.watch.drift.two_sample import adjust_p_values, error_rate_rise


class ErrorSlice(Record):
    """The error rate of the votes that have one value of one grouping, beside all other votes.
    Figures are None for a slice that is too small.
    """

    by: str = Field(description="category, source, length gap, annotator or model")
    name: str
    n: int = Field(description="judged comparisons")
    error_rate: Interval | None = None
    error_rest: float | None = Field(default=None, description="error rate of all other votes")
    lift: Interval | None = Field(
        default=None, description="error rate over that of the rest; None if that is 0"
    )
    p_value: float | None = Field(default=None, description="of a rise, adjusted over all slices")
    is_failing: bool = False


# Characters by which the preferred completion is longer, over the longer one's length: votes that
# go against the model by length alone stand at the ends.
LENGTH_GAPS = {
    "much shorter": -0.5,
    "shorter": -0.15,
    "alike": 0.15,
    "longer": 0.5,
    "much longer": np.inf,
}


def error_slices(
    reflections: pd.DataFrame, comparisons: pd.DataFrame, params: ClusterParams | None = None
) -> tuple[ErrorSlice, ...]:
    """Slices of the votes for a side in REFLECTIONS, failing ones first, then by lift; those below
    `min_in_slice` comparisons last and without figures.

    Votes on one comparison resemble each other, so a comparison counts once in a slice, by the
    mean of its votes there. A slice is compared with all other votes; a grouping with one value
    has none. COMPARISONS give category, source and texts. Raises FrameError naming a comparison
    that is missing.
    """
    params = params or ClusterParams()
    checked = check_frame(reflections, REFLECTIONS)
    votes = checked[checked["is_error"].notna()]
    by_id = comparisons.drop_duplicates("comparison_id").set_index("comparison_id")
    lost = votes.loc[~votes["comparison_id"].isin(by_id.index), "comparison_id"]
    if len(lost):
        raise FrameError(
            f"{lost.nunique()} judged comparisons are missing from the given comparisons, first "
            f"{lost.iloc[0]}. Give those of the same days."
        )
    rows = pd.DataFrame(
        {
            "comparison_id": votes["comparison_id"],
            "error": votes["is_error"].astype(float),
            "category": votes["comparison_id"].map(by_id["category"]),
            "source": votes["comparison_id"].map(by_id["source"].fillna(OWN_SOURCE)),
            "length gap": _length_gaps(votes, by_id),
            "annotator": votes["annotator_id"],
            "model": votes["reward_model"],
        }
    )
    slices = [
        error_slice
        for by in rows.columns[2:]
        for error_slice in _iter_slices(rows, str(by), params)
    ]
    tested = [i for i, error_slice in enumerate(slices) if error_slice.p_value is not None]
    adjusted = adjust_p_values([float(slices[i].p_value or 0.0) for i in tested])
    for i, p_value in zip(tested, adjusted, strict=True):
        rise = (slices[i].error_rate, slices[i].error_rest)
        is_failing = p_value <= params.alpha and (
            rise[0] is not None
            and rise[1] is not None
            and rise[0].value - rise[1] >= params.error_effect
        )
        slices[i] = slices[i].model_copy(update={"p_value": p_value, "is_failing": is_failing})
    return tuple(sorted(slices, key=_rank))


def _iter_slices(rows: pd.DataFrame, by: str, params: ClusterParams) -> Iterator[ErrorSlice]:
    names = sorted(rows[by].dropna().unique())
    if len(names) < 2:
        return
    for name in names:
        is_inside = rows[by] == name
        inside, rest = (
            rows[side].groupby("comparison_id")["error"].mean().to_numpy(dtype=float)
            for side in (is_inside, ~is_inside)
        )
        if min(len(inside), len(rest)) < params.min_in_slice:
            yield ErrorSlice(by=by, name=str(name), n=len(inside))
            continue
        rate, base = float(inside.mean()), float(rest.mean())
        yield ErrorSlice(
            by=by,
            name=str(name),
            n=len(inside),
            error_rate=interval_of_share(rate, len(inside)),
            error_rest=base,
            lift=interval_of_ratio(rate, len(inside), base, len(rest)),
            p_value=error_rate_rise(rest, inside).p_value,
        )


def _length_gaps(votes: pd.DataFrame, comparisons: pd.DataFrame) -> pd.Series:
    """How much longer the preferred completion is, by the names of LENGTH_GAPS."""
    a, b = (
        votes["comparison_id"].map(comparisons[column].str.len()).astype(float)
        for column in ("completion_a", "completion_b")
    )
    longer = np.maximum(a, b)
    side = np.where(votes["choice"] == "a", 1.0, -1.0)
    gap = side * (a - b) / longer.where(longer > 0, 1)
    names, edges = list(LENGTH_GAPS), list(LENGTH_GAPS.values())
    place = np.searchsorted(edges, gap.to_numpy(dtype=float), side="left")
    return pd.Series([names[i] for i in place], index=votes.index, dtype="str")


def _rank(error_slice: ErrorSlice) -> tuple[bool, bool, float, str, str]:
    lift = 0.0 if error_slice.lift is None else error_slice.lift.value
    return (
        not error_slice.is_failing,
        error_slice.error_rate is None,
        -lift,
        error_slice.by,
        error_slice.name,
    )

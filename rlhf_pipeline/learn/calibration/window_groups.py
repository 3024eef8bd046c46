"""Calibration windows by group: category, source, and group of annotators.

A group is measured on the votes of the whole window that are its own, so its figures are of the
same model and days as those of the window.
"""

from collections.abc import Iterator, Mapping, Sequence

import pandas as pd

from rlhf_pipeline.core.records import CalibrationMetrics, GroupCalibration, Interval
from rlhf_pipeline.feedback.votes import noise_ceiling_or_repeats
from rlhf_pipeline.feedback.votes.annotator_groups import MIN_ANNOTATORS, name_annotator_groups
from rlhf_pipeline.learn.calibration.calibration_windows import (
    OverTimeParams,
    WindowVotes,
    iter_windows,
    measure_votes,
)
from rlhf_pipeline.learn.calibration.group_calibration import MIN_PAIRS, Groups

Figures = tuple[CalibrationMetrics, Interval | None]

ANNOTATOR_GROUP = "annotator_group"
MAX_GROUPS = 12  # of a grouping, the largest: each is a bootstrap of the window


def group_votes(
    votes: pd.DataFrame, comparisons: Groups, annotators: Mapping[str, str]
) -> pd.DataFrame:
    """The groups of VOTES, indexed by seq: a column for each grouping of `comparisons`, and
    `annotator_group`, where `annotators` is by annotator id.
    """
    columns = {by: votes["comparison_id"].map(dict(names)) for by, names in comparisons.items()}
    columns[ANNOTATOR_GROUP] = name_annotator_groups(votes, annotators)
    groups = pd.DataFrame(columns).set_index(votes["seq"].astype("int64"))
    return groups[~groups.index.duplicated()]


def windows_by_group(
    predictions: pd.DataFrame,
    votes: pd.DataFrame,
    groups: pd.DataFrame,
    days: Sequence[str],
    params: OverTimeParams | None = None,
) -> dict[str, tuple[GroupCalibration, ...]]:
    """The groups of the window that ends on each of `days`, largest first; `n` counts comparisons.

    `predictions` and `votes` are those of `calibration_over_time`, `groups` the result of
    `group_votes`. Groups of fewer than MIN_PAIRS comparisons or MIN_ANNOTATORS annotators are left
    out, and of each grouping all but the MAX_GROUPS largest. Raises FrameError and InvalidScores.
    """
    return {
        window.day: tuple(_iter_groups(window, groups))
        for window in iter_windows(predictions, votes, days, params)
    }


def _iter_groups(window: WindowVotes, groups: pd.DataFrame) -> Iterator[GroupCalibration]:
    cache: dict[bytes, Figures] = {}  # groups of several groupings may have the same votes
    for by in groups:
        names = groups[by].dropna()
        of_judged, of_cast = window.predictions["seq"].map(names), window.cast["seq"].map(names)
        for name, n in _find_large(window, by, of_judged, of_cast).items():
            is_prediction, is_vote = of_judged == name, of_cast == name
            key = is_prediction.to_numpy().tobytes() + is_vote.to_numpy().tobytes()
            if key not in cache:
                ceiling = noise_ceiling_or_repeats(window.cast[is_vote])
                cache[key] = measure_votes(window.predictions[is_prediction]), ceiling
            calibrated, ceiling = cache[key]
            yield GroupCalibration(
                by=by,
                group=str(name),
                n=int(n),
                raw=None,
                calibrated=calibrated,
                noise_ceiling=ceiling,
            )


def _find_large(
    window: WindowVotes, by: str, of_judged: pd.Series, of_cast: pd.Series
) -> pd.Series:
    """Number of comparisons of each group to measure, the largest first."""
    sizes = window.predictions.groupby(of_judged)["group"].nunique()
    people = window.cast["annotator_id"][window.cast["seq"].isin(window.predictions["seq"])]
    n_people = people.groupby(of_cast).nunique()
    is_large = sizes >= MIN_PAIRS
    if by == ANNOTATOR_GROUP:
        is_large &= n_people.reindex(sizes.index, fill_value=0) >= MIN_ANNOTATORS
    return sizes[is_large].sort_values(ascending=False, kind="stable").head(MAX_GROUPS)

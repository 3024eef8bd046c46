"""Calibration by source and by category.

A model can be overconfident on one source and timid on another and look calibrated over both. Small
groups are uncertain, so every figure of a group has an interval, and a group below MIN_PAIRS has no
figures.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Self

import numpy as np
import numpy.typing as npt
import pandas as pd

from rlhf_pipeline.core.errors import FrameError
from rlhf_pipeline.core.intervals import BootstrapParams
from rlhf_pipeline.core.records import (
    CalibrationMetrics,
    GroupCalibration,
    Interval,
    ReliabilityBin,
)
from rlhf_pipeline.feedback.votes import (
    CEILINGS,
    NO_CHANGES,
    TasteChanges,
    ceilings,
    noise_ceiling_or_repeats,
)
from rlhf_pipeline.feedback.votes.ceilings import ALL, group_names
from rlhf_pipeline.learn.calibration.metrics import Floats
from rlhf_pipeline.learn.calibration.summary import calibration_metrics, reliability_table

MIN_PAIRS = 10  # below this number of comparisons, intervals are unreliable
UNKNOWN_CEILING = "unknown: no comparison has two votes or a repeat"
OWN_SOURCE = "this project"  # group of comparisons that were not imported

Groups = Mapping[str, Mapping[str, str]]  # grouping -> comparison id -> group
Ceilings = Mapping[str, Mapping[str, Interval]]  # grouping -> group -> noise ceiling


@dataclass(frozen=True)
class PredictedVotes:
    """Votes beside their predictions, each field (n,): P(a preferred), 1 where the vote is for a,
    the comparison, and optionally the raw probabilities, weights, clusters (prompts) and the share
    right, see `calibration_metrics`.
    """

    calibrated: Any
    outcomes: Any
    comparison_ids: Sequence[str] | npt.NDArray[Any]
    raw: Any = None
    weights: Any = None
    clusters: Sequence[Any] | npt.NDArray[Any] | None = None
    right: Any = None

    @classmethod
    def of_day(cls, predictions: pd.DataFrame) -> Self:
        """From the frame of `judged_predictions`."""
        return cls(
            predictions["p"],
            predictions["outcome"],
            predictions["group"].to_numpy(),
            right=1 - predictions["error"],
        )


@dataclass(frozen=True)
class CalibrationContext:
    """What a calibration knows of its votes beside them: noise ceilings of all and of each group,
    and changes of taste.
    """

    noise_ceiling: Interval | None = None
    groups: Groups = field(default_factory=dict)
    group_ceilings: Ceilings = field(default_factory=dict)
    taste_changes: TasteChanges = NO_CHANGES

    @classmethod
    def of(
        cls,
        votes: pd.DataFrame,
        comparisons: pd.DataFrame,
        taste_changes: TasteChanges = NO_CHANGES,
    ) -> Self:
        """From VOTES and the COMPARISONS they judge, those without a majority included. Raises
        FrameError without comparison ids.
        """
        groups = group_comparisons(comparisons)
        return cls(
            noise_ceiling_or_repeats(votes), groups, ceilings_by_group(votes, groups), taste_changes
        )


def group_comparisons(comparisons: pd.DataFrame) -> dict[str, dict[str, str]]:
    """By source and by category (the domain, for what is imported) of COMPARISONS rows; a missing
    column gives no grouping.

    Raises FrameError without comparison ids.
    """
    if "comparison_id" not in comparisons:
        raise FrameError(
            "Comparisons to group by have no column comparison_id. Give rows of COMPARISONS."
        )
    ids = comparisons["comparison_id"].tolist()
    return {
        by: {
            str(i): OWN_SOURCE if pd.isna(name) else str(name)
            for i, name in zip(ids, comparisons[by], strict=True)
        }
        for by in ("source", "category")
        if by in comparisons
    }


def ceilings_by_group(votes: pd.DataFrame, groups: Groups) -> dict[str, dict[str, Interval]]:
    """The shown ceiling of each group's own VOTES; groups without one are left out. Raises
    FrameError.
    """

    def iter_ceilings(names: Mapping[str, str]) -> Iterator[tuple[str, Interval]]:
        group_of_vote = group_names(votes, names)
        for name in sorted(group_of_vote.dropna().unique()):
            ceiling = noise_ceiling_or_repeats(votes[group_of_vote == name])
            if ceiling is not None:
                yield str(name), ceiling

    return {by: dict(iter_ceilings(names)) for by, names in groups.items()}


def all_ceilings(votes: pd.DataFrame, groups: Groups) -> pd.DataFrame:
    """CEILINGS after a column `grouped_by`: at least, at most and from repeats, of all votes and
    of each group. Raises FrameError.
    """
    everything = ceilings(votes).assign(grouped_by=ALL)
    parts = [ceilings(votes, names).iloc[1:].assign(grouped_by=by) for by, names in groups.items()]
    return pd.concat([everything, *parts], ignore_index=True)[["grouped_by", *CEILINGS.columns]]


def calibration_by_group(
    votes: PredictedVotes,
    groups: Groups,
    *,
    ceilings: Ceilings | None = None,
    params: BootstrapParams | None = None,
) -> tuple[GroupCalibration, ...]:
    """All measures of each group, by name of the grouping and then largest first; rows of
    comparisons without a group are left out.

    The bootstrap draws the votes of a cluster together, else those of a comparison. Raises
    InvalidScores and NotEnoughData as the metrics do.
    """
    ids = np.asarray(votes.comparison_ids, dtype=object)
    drawn_together = ids if votes.clusters is None else np.asarray(votes.clusters, dtype=object)
    y = np.asarray(votes.outcomes, dtype=np.float64)
    w = np.ones(len(ids)) if votes.weights is None else np.asarray(votes.weights, dtype=np.float64)

    def measure(p: Any, inside: npt.NDArray[np.bool_], n: int) -> CalibrationMetrics | None:
        if p is None or n < MIN_PAIRS:
            return None
        return calibration_metrics(
            _select(p, inside),
            y[inside],
            right=None if votes.right is None else _select(votes.right, inside),
            weights=w[inside],
            groups=drawn_together[inside],
            n=n,
            params=params,
        )

    def count_bins(p: Any, inside: npt.NDArray[np.bool_], n: int) -> tuple[ReliabilityBin, ...]:
        if p is None or n < MIN_PAIRS:
            return ()
        return reliability_table(
            _select(p, inside),
            y[inside],
            weights=w[inside],
            groups=drawn_together[inside],
            params=params,
        )

    def iter_groups() -> Iterator[GroupCalibration]:
        for by, name, inside, n in _iter_members(ids, groups):
            yield GroupCalibration(
                by=by,
                group=name,
                n=n,
                raw=measure(votes.raw, inside, n),
                calibrated=measure(votes.calibrated, inside, n),
                raw_bins=count_bins(votes.raw, inside, n),
                calibrated_bins=count_bins(votes.calibrated, inside, n),
                noise_ceiling=(ceilings or {}).get(by, {}).get(name),
            )

    return tuple(iter_groups())


def largest_groups(groups: Sequence[GroupCalibration], n: int) -> list[GroupCalibration]:
    """The `n` largest groups, by grouping, largest first."""
    largest = sorted(groups, key=lambda group: (-group.n, group.by, group.group))[:n]
    return sorted(largest, key=lambda group: (group.by, -group.n, group.group))


def _iter_members(
    ids: npt.NDArray[Any], groups: Groups
) -> Iterator[tuple[str, str, npt.NDArray[np.bool_], int]]:
    for by, names in groups.items():
        of_row = pd.Series(ids).map(dict(names))
        sizes = pd.Series(ids).groupby(of_row).nunique().sort_values(ascending=False, kind="stable")
        for name, n in sizes.items():
            yield by, str(name), (of_row == name).to_numpy(dtype=bool), int(n)


def _select(p: Any, inside: npt.NDArray[np.bool_]) -> Floats:
    return np.asarray(p, dtype=np.float64)[inside]

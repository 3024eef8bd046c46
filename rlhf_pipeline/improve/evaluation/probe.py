"""Measures accuracy and calibration of a reward model on predictions made before the votes.

The reliability table and the lists of votes per bin both use `equal_width_bins`, so a bin of 12
votes lists 12.
"""

from dataclasses import dataclass

import numpy as np
import pandas as pd

from rlhf_pipeline.core.errors import NotEnoughData
from rlhf_pipeline.core.records import (
    CalibrationMetrics,
    GroupCalibration,
    Interval,
    ReliabilityBin,
)
from rlhf_pipeline.feedback.votes import noise_ceiling_or_repeats
from rlhf_pipeline.learn.calibration import (
    PredictedVotes,
    calibration_by_group,
    calibration_metrics,
    reliability_table,
)
from rlhf_pipeline.learn.calibration.group_calibration import Groups
from rlhf_pipeline.learn.calibration.metrics import N_BINS, FoldedRows, equal_width_bins
from rlhf_pipeline.watch.reflection import judged_predictions

VOTE_COLUMNS = (
    "comparison_id",
    "vote_id",
    "seq",
    "annotator_id",
    "choice",
    "strength",
    "p_raw",
    "p_calibrated",
)
PAIRS = (*VOTE_COLUMNS, "wrong")


@dataclass(frozen=True)
class Probe:
    """Figures of one model for tables, diagrams and pages: `n_votes` for a or b on `n_comparisons`
    that it predicted; `bins` are of the calibrated confidence, `raw_bins` of the uncalibrated one.
    """

    n_votes: int
    n_comparisons: int
    raw_bins: tuple[ReliabilityBin, ...]
    bins: tuple[ReliabilityBin, ...]
    metrics: CalibrationMetrics
    noise_ceiling: Interval | None


def probe_model(reflections: pd.DataFrame, votes: pd.DataFrame) -> Probe:
    """Probe one model by its REFLECTIONS. `votes` are all VOTES on the same comparisons, including
    ties; they give the noise ceiling and the prompts that the bootstrap resamples.

    Raises NotEnoughData without votes for a or b on predicted comparisons.
    """
    rows = _judged_with_prompts(reflections, votes)
    if rows.empty:
        n = reflections["comparison_id"].nunique()
        raise NotEnoughData(
            f"{n} comparisons were predicted, but none has a later vote for a or b. Collect votes "
            "on them."
        )
    return Probe(
        n_votes=len(rows),
        n_comparisons=int(rows["group"].nunique()),
        raw_bins=_bins(rows, "p_raw"),
        bins=_bins(rows),
        metrics=calibration_metrics(
            rows["p"], rows["outcome"], right=1 - rows["error"], groups=rows["prompt"]
        ),
        noise_ceiling=noise_ceiling_or_repeats(votes),
    )


def probe_groups(
    reflections: pd.DataFrame, votes: pd.DataFrame, groups: Groups
) -> tuple[GroupCalibration, ...]:
    """Calibration of each group of comparisons before and after calibration, from the rows of
    `probe_model`; a group of fewer than MIN_PAIRS comparisons has no figures.
    """
    rows = _judged_with_prompts(reflections, votes)
    predicted = PredictedVotes(
        rows["p"],
        rows["outcome"],
        rows["group"].to_numpy(),
        raw=rows["p_raw"],
        clusters=rows["prompt"].to_numpy(),
        right=1 - rows["error"],
    )
    return calibration_by_group(predicted, groups)


def _judged_with_prompts(reflections: pd.DataFrame, votes: pd.DataFrame) -> pd.DataFrame:
    """`judged_predictions` with the uncalibrated `p_raw` and a column `prompt`, because errors on
    one prompt are correlated.
    """
    rows = judged_predictions(reflections)
    prompts = dict(zip(votes["comparison_id"], votes["prompt_id"], strict=True))
    raw = dict(zip(reflections["seq"], reflections["p_raw"], strict=True))
    return rows.assign(
        p_raw=rows["seq"].map(raw).astype("float64"),
        prompt=rows["group"].map(prompts).fillna(rows["group"]),
    )


def _bins(rows: pd.DataFrame, column: str = "p") -> tuple[ReliabilityBin, ...]:
    if rows.empty:
        return ()
    return reliability_table(rows[column], rows["outcome"], groups=rows["prompt"])


def judged_rows(reflections: pd.DataFrame) -> pd.DataFrame:
    """The rows and columns of REFLECTIONS that `pairs_of_bin` reads, for caching."""
    return reflections.loc[
        reflections["is_error"].notna(), [*VOTE_COLUMNS, "is_error"]
    ].reset_index(drop=True)


def find_bin(bins: tuple[ReliabilityBin, ...], value: float) -> ReliabilityBin:
    """The bin of a stated confidence, 0.5 to 1. Raises NotEnoughData, which lists the bins with
    votes.
    """
    inside = [
        bin for bin in bins if bin.low <= value < bin.high or (value == 1.0 and bin.high == 1.0)
    ]
    if not inside:
        there = ", ".join(
            f"{reliability_bin.low:.2f}-{reliability_bin.high:.2f}" for reliability_bin in bins
        )
        raise NotEnoughData(
            f"No votes in the bin of {value:g}. Bins with votes: {there or 'none'}."
        )
    return inside[0]


def pairs_of_bin(reflections: pd.DataFrame, chosen_bin: ReliabilityBin) -> pd.DataFrame:
    """The votes of a bin with columns PAIRS, wrong predictions first, then those with a missing
    `wrong`, each by seq.

    `wrong`: the vote prefers the lower score; missing where calibration made both sides equally
    likely, which counts half in the bin.

    `reflections` are REFLECTIONS or the result of `judged_rows`.
    """
    predictions = reflections[reflections["is_error"].notna()]
    if predictions.empty:
        return predictions.assign(wrong=predictions["is_error"])[list(PAIRS)]
    number = equal_width_bins(
        FoldedRows.from_predictions(predictions["p_calibrated"], np.zeros(len(predictions)))
    )
    inside = predictions[number == round((chosen_bin.low - 0.5) * 2 * N_BINS)]
    wrong = inside["is_error"].astype("boolean").mask(inside["p_calibrated"] == 0.5)
    listed = inside.assign(wrong=wrong, rank=rank_pairs(wrong)).sort_values(["rank", "seq"])
    return listed[list(PAIRS)].reset_index(drop=True)


def rank_pairs(wrong: pd.Series) -> pd.Series:
    """Place of each pair in the list of a bin: 0 if predicted wrong, 1 if `wrong` is missing, 2 if
    predicted right.
    """
    return wrong.map({True: 0, False: 2}).fillna(1).astype("int64")

"""A reward model against people, on predictions made before their votes: how sure it was, and how
often it was right. Knows frames; knows no store and no picture.

A bin of the reliability table and the votes listed behind it are counted by one rule,
`equal_width_bins`, so that a bin of 12 lists 12.
"""

from dataclasses import dataclass

import numpy as np
import pandas as pd

from rlhf_pipeline.calibration import calibration_metrics, reliability_table
from rlhf_pipeline.calibration.metrics import N_BINS, FoldedRows, equal_width_bins
from rlhf_pipeline.errors import NotEnoughData
from rlhf_pipeline.records import CalibrationMetrics, Interval, ReliabilityBin
from rlhf_pipeline.reflection import judged_predictions
from rlhf_pipeline.votes import noise_ceiling_or_repeats

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
    """What a table, a diagram and a page show of one model: `n_votes` for a or b met its
    predictions, on `n_comparisons`.
    """

    n_votes: int
    n_comparisons: int
    bins: tuple[ReliabilityBin, ...]
    metrics: CalibrationMetrics
    noise_ceiling: Interval | None


def probe_model(reflections: pd.DataFrame, votes: pd.DataFrame) -> Probe:
    """Of the REFLECTIONS of one model. `votes`: VOTES on the same comparisons, for the noise
    ceiling, ties too, and for the prompts, over which intervals are drawn.

    Raises NotEnoughData where nobody preferred a side of anything it predicted.
    """
    rows = _judged_with_prompts(reflections, votes)
    if rows.empty:
        n = reflections["comparison_id"].nunique()
        raise NotEnoughData(
            f"{n} comparisons were predicted, and nobody has preferred a side of one since. "
            "Collect votes on them."
        )
    return Probe(
        n_votes=len(rows),
        n_comparisons=int(rows["group"].nunique()),
        bins=_bins(rows),
        metrics=calibration_metrics(rows["p"], rows["outcome"], groups=rows["prompt"]),
        noise_ceiling=noise_ceiling_or_repeats(votes),
    )


def reliability_bins(reflections: pd.DataFrame, votes: pd.DataFrame) -> tuple[ReliabilityBin, ...]:
    """The reliability table alone, of what `probe_model` takes; empty where nobody preferred a
    side.
    """
    return _bins(_judged_with_prompts(reflections, votes))


def _judged_with_prompts(reflections: pd.DataFrame, votes: pd.DataFrame) -> pd.DataFrame:
    """`judged_predictions` with a column `prompt`: comparisons of one prompt are right and wrong
    together.
    """
    rows = judged_predictions(reflections)
    prompts = dict(zip(votes["comparison_id"], votes["prompt_id"], strict=True))
    return rows.assign(prompt=rows["group"].map(prompts).fillna(rows["group"]))


def _bins(rows: pd.DataFrame) -> tuple[ReliabilityBin, ...]:
    return (
        () if rows.empty else reliability_table(rows["p"], rows["outcome"], groups=rows["prompt"])
    )


def judged_rows(reflections: pd.DataFrame) -> pd.DataFrame:
    """As much of REFLECTIONS as `pairs_of_bin` reads, to be kept at hand."""
    return reflections.loc[
        reflections["is_error"].notna(), [*VOTE_COLUMNS, "is_error"]
    ].reset_index(drop=True)


def find_bin(bins: tuple[ReliabilityBin, ...], value: float) -> ReliabilityBin:
    """The bin in which a stated confidence lies, 0.5 to 1. Raises NotEnoughData naming the bins
    that have votes.
    """
    inside = [
        found
        for found in bins
        if found.low <= value < found.high or (value == 1.0 and found.high == 1.0)
    ]
    if not inside:
        there = ", ".join(f"{found.low:.2f}-{found.high:.2f}" for found in bins)
        raise NotEnoughData(
            f"No vote lies in the bin of {value:g}. There are votes in {there or 'none'}."
        )
    return inside[0]


def pairs_of_bin(reflections: pd.DataFrame, wanted: ReliabilityBin) -> pd.DataFrame:
    """The votes of a bin, PAIRS, as many as it counts: the wrongly predicted first, by seq.
    `wrong`: the vote went against the higher score.

    Of REFLECTIONS, or of what `judged_rows` leaves of them.
    """
    judged = reflections[reflections["is_error"].notna()]
    if judged.empty:
        return judged.assign(wrong=False)[list(PAIRS)]
    number = equal_width_bins(
        FoldedRows.from_predictions(judged["p_calibrated"], np.zeros(len(judged)))
    )
    inside = judged[number == round((wanted.low - 0.5) * 2 * N_BINS)]
    listed = inside.assign(wrong=inside["is_error"].astype(bool)).sort_values(
        ["wrong", "seq"], ascending=[False, True]
    )
    return listed[list(PAIRS)].reset_index(drop=True)

"""Computes chance-corrected agreement: Krippendorff's alpha.

Votes have three categories: a, b, or neither (`tie`, `both_bad`). Skips, machine votes and repeats,
which swap the sides, are left out. Alpha is 1 for full agreement and 0 for chance
agreement. It is None if no comparison has two votes, or if all votes are in one category.

If every comparison has the same agreement, every bootstrap resample has it too and the interval
would be empty whatever the sample size. Then the interval is Wilson's of the agreement for the
number of prompts, corrected by the same chance agreement.
"""

import numpy as np
import numpy.typing as npt
import pandas as pd

from rlhf_pipeline.core.frames import VOTES, check_frame
from rlhf_pipeline.core.intervals import (
    SAME,
    BootstrapParams,
    group_index,
    percentile_interval,
    resampled_totals,
    wilson_bounds,
)
from rlhf_pipeline.core.records import Choice, Interval
from rlhf_pipeline.feedback.votes.counting import drop_machine_votes

Floats = npt.NDArray[np.float64]
# per row of sums: observed agreement of two votes on a comparison, and agreement expected by chance
Agreements = tuple[Floats, Floats]

ANSWERS = {Choice.A: 0, Choice.B: 1, Choice.TIE: 2, Choice.BOTH_BAD: 2}
N_ANSWERS = 3


def krippendorff_alpha(
    votes: pd.DataFrame, params: BootstrapParams | None = None
) -> Interval | None:
    """Nominal alpha of counting VOTES, with any number per comparison (Krippendorff 2011); the
    bootstrap resamples prompts.
    """
    params = params or BootstrapParams()
    judgements = _first_judgements(votes)
    codes, ids = pd.factorize(judgements["comparison_id"], sort=True)
    prompts = judgements["prompt_id"].to_numpy()[np.unique(codes, return_index=True)[1]]
    counts = (
        np.bincount(codes * N_ANSWERS + _encode_answers(judgements), minlength=len(ids) * N_ANSWERS)
        .reshape(-1, N_ANSWERS)
        .astype(np.float64)
    )
    overlapping = counts.sum(axis=1) >= 2
    if not overlapping.any():
        return None
    parts = _alpha_parts(counts[overlapping])
    agreement, by_chance = _alpha_agreements(parts.sum(axis=0)[None])
    value = float(_correct_for_chance(agreement, by_chance)[0])
    if np.isnan(value):
        return None
    index = group_index(prompts[overlapping], int(overlapping.sum()))
    n_groups = int(index.max()) + 1
    interval = percentile_interval(
        value,
        _correct_for_chance(*_alpha_agreements(resampled_totals(parts, index, params))),
        int(overlapping.sum()),
        params,
        n_groups,
    )
    agreements, _ = _alpha_agreements(parts)
    if np.ptp(agreements) > SAME:
        return interval
    low, high = (
        float(_correct_for_chance(end, by_chance)[0])
        for end in wilson_bounds(agreement, n_groups, params.level)
    )
    return interval.model_copy(
        update={
            "low": max(-1.0, min(low, interval.low)),
            "high": min(1.0, max(high, interval.high)),
        }
    )


def _first_judgements(votes: pd.DataFrame) -> pd.DataFrame:
    checked = drop_machine_votes(check_frame(votes, VOTES))
    return checked[checked["choice"].isin(ANSWERS) & checked["repeat_of"].isna()]


def _encode_answers(judgements: pd.DataFrame) -> npt.NDArray[np.int64]:
    return np.asarray(
        judgements["choice"].map({str(choice): number for choice, number in ANSWERS.items()}),
        dtype=np.int64,
    )


def _alpha_parts(counts: Floats) -> Floats:
    """Per comparison: coincidences of equal categories, and counts per category. Alpha is computed
    from their sums.
    """
    equal = (counts * (counts - 1)).sum(axis=1) / (counts.sum(axis=1) - 1)
    return np.column_stack([equal, counts])


def _alpha_agreements(sums: Floats) -> Agreements:
    equal, counts = sums[:, 0], sums[:, 1:]
    n = counts.sum(axis=1)
    # two votes drawn without replacement
    return equal / n, 1 - (n**2 - (counts**2).sum(axis=1)) / (n * (n - 1))


def _correct_for_chance(agreement: Floats, by_chance: Floats) -> Floats:
    with np.errstate(invalid="ignore", divide="ignore"):
        return np.where(by_chance < 1 - 1e-12, (agreement - by_chance) / (1 - by_chance), np.nan)

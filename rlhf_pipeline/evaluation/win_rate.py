"""Computes the share of prompts on which the candidate's completion beats the champion's."""

import numpy as np
import pandas as pd

from rlhf_pipeline.intervals import Floats, mean_over_prompts
from rlhf_pipeline.records import Interval


def score_wins(score_candidate: Floats, score_champion: Floats) -> Floats:
    """1 if the candidate's score is higher, 0 if lower, 0.5 if equal; all arrays (n,)."""
    return np.asarray(0.5 + 0.5 * np.sign(score_candidate - score_champion), dtype=np.float64)


def win_rate(samples: pd.DataFrame, *, seed: int, n_resamples: int = 2000) -> Interval:
    """Share of prompts won by the candidate, ties count half. `samples` has prompt_id,
    score_candidate and score_champion.
    """
    won = score_wins(samples["score_candidate"].to_numpy(), samples["score_champion"].to_numpy())
    return mean_over_prompts(samples.assign(win=won), "win", seed=seed, n_resamples=n_resamples)

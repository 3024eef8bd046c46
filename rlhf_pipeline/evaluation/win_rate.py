"""How often the candidate's completion beats the champion's. Knows scores; knows no policy and no
reward model.
"""

import numpy as np
import pandas as pd

from rlhf_pipeline.intervals import Floats, mean_over_prompts
from rlhf_pipeline.records import Interval


def score_wins(score_candidate: Floats, score_champion: Floats) -> Floats:
    """1 where the candidate scores higher, 0 where lower, 0.5 where equal, as two equal completions
    always are. All (n,).
    """
    return np.asarray(0.5 + 0.5 * np.sign(score_candidate - score_champion), dtype=np.float64)


def win_rate(samples: pd.DataFrame, *, seed: int, n_resamples: int = 2000) -> Interval:
    """Share of prompts won, ties half, from `samples` with prompt_id, score_candidate and
    score_champion.
    """
    won = score_wins(samples["score_candidate"].to_numpy(), samples["score_champion"].to_numpy())
    return mean_over_prompts(samples.assign(win=won), "win", seed=seed, n_resamples=n_resamples)

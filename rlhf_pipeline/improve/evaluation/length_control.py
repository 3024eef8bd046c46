"""The win rate that the candidate would have if both completions of a prompt were equally long."""

import numpy as np
import numpy.typing as npt
import pandas as pd

from rlhf_pipeline.core.intervals import Floats, group_index
from rlhf_pipeline.core.records import Interval
from rlhf_pipeline.improve.evaluation.win_rate import add_judge_error, win_rate

N_STEPS = 12  # of Newton's method; the loss is convex and has two parameters
# A normal prior on the log odds: it keeps them finite where one policy wins every prompt, and where
# length separates wins from losses.
PRECISION = np.array([0.01, 1.0])
AT_ONCE = 4_000_000  # numbers held per resampled block


def length_controlled_win_rate(
    samples: pd.DataFrame, member_wins: Floats, *, seed: int, n_resamples: int = 2000
) -> Interval:
    """Win rate at equal length, after Dubois et al. 2024, with a bootstrap interval over prompts,
    widened by the judge's error as `member_wins` (M, n), the wins by each of its members, show it.

    A logistic regression of the wins on tanh(difference of the lengths / its standard deviation)
    gives the probability of a win at a difference of 0. Unlike AlpacaEval's, it has no term for the
    difficulty of each prompt. `samples` has prompt_id, win, completion_candidate and
    completion_champion. It is the plain win rate where all wins or all differences are equal.
    """
    win = samples["win"].to_numpy(dtype=np.float64)
    lengths = [samples[f"completion_{role}"].str.len() for role in ("candidate", "champion")]
    difference = (lengths[0] - lengths[1]).to_numpy(dtype=np.float64)
    spread = float(difference.std())
    if spread == 0 or np.ptp(win) == 0:
        return win_rate(samples, member_wins, seed=seed, n_resamples=n_resamples)
    index = group_index(samples["prompt_id"].to_numpy(), len(samples))
    n_prompts = int(index.max()) + 1
    # every prompt counts once, however many samples it has
    own = 1 / np.bincount(index)[index]
    x = np.tanh(difference / spread)
    value, *by_member = (
        _fit_at_equal_length(x, outcome, own[None, :])[0] for outcome in (win, *member_wins)
    )
    rng = np.random.default_rng([seed, n_prompts])
    drawn: list[Floats] = []
    at_once = max(1, AT_ONCE // len(win))
    for start in range(0, n_resamples, at_once):
        size = min(at_once, n_resamples - start)
        times = rng.multinomial(n_prompts, np.full(n_prompts, 1 / n_prompts), size=size)
        drawn.append(_fit_at_equal_length(x, win, times[:, index] * own))
    low, high = np.quantile(np.concatenate(drawn), [0.025, 0.975])
    interval = Interval(value=float(value), low=float(low), high=float(high), n=n_prompts)
    return add_judge_error(interval, np.array(by_member))


def _fit_at_equal_length(x: Floats, win: Floats, weights: npt.NDArray[np.float64]) -> Floats:
    """P(win) at x = 0 for each row of weights (B, n): (B,)."""
    theta = np.zeros((len(weights), 2))
    design = np.stack([np.ones_like(x), x], axis=1)
    for _ in range(N_STEPS):
        p = 1 / (1 + np.exp(-np.clip(theta @ design.T, -30, 30)))
        gradient = (weights * (win - p)) @ design - theta * PRECISION
        curvature = weights * p * (1 - p)
        hessian = np.empty((len(weights), 2, 2))
        hessian[:, 0, 0] = curvature.sum(axis=1)
        hessian[:, 0, 1] = hessian[:, 1, 0] = curvature @ x
        hessian[:, 1, 1] = curvature @ x**2
        hessian += np.diag(PRECISION)
        step = np.linalg.solve(hessian, gradient[:, :, None])[:, :, 0]
        theta += np.clip(step, -4, 4)
    return np.asarray(1 / (1 + np.exp(-theta[:, 0])), dtype=np.float64)

"""Compares completions of two policies by win rate and by correct checkable answers."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from statistics import NormalDist
from typing import Any

import numpy as np
import pandas as pd
from scipy.special import expit

from rlhf_pipeline.core.intervals import Floats, group_index, mean_over_prompts
from rlhf_pipeline.core.records import (
    CategoryComparison,
    DimensionComparison,
    DimensionHead,
    Interval,
)
from rlhf_pipeline.generate.prompts import is_right


def score_wins(score_candidate: Floats, score_champion: Floats) -> Floats:
    """1 if the candidate's score is higher, 0 if lower, 0.5 if equal; all arrays (n,)."""
    return np.asarray(0.5 + 0.5 * np.sign(score_candidate - score_champion), dtype=np.float64)


def win_rate(
    samples: pd.DataFrame,
    member_wins: Floats | None = None,
    *,
    seed: int,
    n_resamples: int = 2000,
) -> Interval:
    """Share of prompts won by the candidate, ties count half. `samples` has prompt_id,
    score_candidate and score_champion. The interval knows the prompts' error, and the judge's with
    `member_wins` (M, n), the wins by each of its members.
    """
    won = score_wins(samples["score_candidate"].to_numpy(), samples["score_champion"].to_numpy())
    rate = mean_over_prompts(samples.assign(win=won), "win", seed=seed, n_resamples=n_resamples)
    if member_wins is None:
        return rate
    of_prompt = 1 / samples.groupby("prompt_id")["prompt_id"].transform("size").to_numpy()
    return add_judge_error(rate, member_wins @ of_prompt / rate.n)


def add_judge_error(rate: Interval, by_member: Floats) -> Interval:
    """The interval of a win rate widened by the error of its judge, an ensemble whose members each
    give the win rates `by_member` (M,).

    Each member is fitted on prompts drawn with replacement, so the members' variance is a bootstrap
    estimate of the judge's (Efron 1979). It is added to the prompts' variance, with Student's t at
    Satterthwaite's degrees of freedom (1946), as M is small. A judge of one member shows no error.
    It does not contain errors that all members share, such as a liking of long texts.

    >>> rate = Interval(value=0.6, low=0.55, high=0.65, n=300)
    >>> wider = add_judge_error(rate, np.array([0.58, 0.6, 0.62, 0.6]))
    >>> round(wider.low, 2), round(wider.high, 2)
    (0.54, 0.66)
    """
    from scipy.special import ndtri, stdtrit

    if len(by_member) < 2 or (variance := float(np.var(by_member, ddof=1))) == 0:
        return rate
    tail = (1 + rate.level) / 2
    halves = []
    for half in (rate.value - rate.low, rate.high - rate.value):
        own = (half / float(ndtri(tail))) ** 2
        freedom = (len(by_member) - 1) * (1 + own / variance) ** 2
        halves.append(float(stdtrit(freedom, tail)) * (own + variance) ** 0.5)
    low, high = rate.value - halves[0], rate.value + halves[1]
    return rate.model_copy(update={"low": max(0.0, low), "high": min(1.0, high)})


def add_held_out_error(rate: Interval, agreement: Interval) -> Interval:
    """The interval of a judge's win rate widened by what is unknown of its errors, from its
    `agreement` with held-out votes.

    Prediction-powered inference (Angelopoulos et al. 2023) adds the variance of the mean residual
    on held-out votes: a share of 1 - agreement is off by one, as often to either side because sides
    are random. It holds where held-out texts are like the evaluated ones.

    >>> rate = Interval(value=0.6, low=0.55, high=0.65, n=300)
    >>> wider = add_held_out_error(rate, Interval(value=0.8, low=0.74, high=0.86, n=200))
    >>> round(wider.low, 2), round(wider.high, 2)
    (0.52, 0.68)
    """
    tail = NormalDist().inv_cdf((1 + rate.level) / 2)
    variance = tail**2 * (1 - agreement.value) / agreement.n
    low = rate.value - ((rate.value - rate.low) ** 2 + variance) ** 0.5
    high = rate.value + ((rate.high - rate.value) ** 2 + variance) ** 0.5
    return rate.model_copy(update={"low": max(0.0, low), "high": min(1.0, high)})


@dataclass(frozen=True)
class CheckableAnswers:
    """Shares of correct answers. `difference` is candidate minus champion, paired by prompt, so
    that the difficulty of prompts cancels.
    """

    candidate: Interval
    champion: Interval
    difference: Interval


def grade_answers(references: pd.Series, completions: Iterable[str]) -> Floats:
    """Grades (n,): 1 correct, 0 wrong, NaN if the prompt has no reference."""
    return np.array(
        [
            float("nan") if pd.isna(reference) else float(is_right(reference, text))
            for reference, text in zip(references, completions, strict=True)
        ]
    )


def compare_checkable_answers(
    samples: pd.DataFrame, *, seed: int, n_resamples: int = 2000
) -> CheckableAnswers | None:
    """Compare grades in `samples`, with columns prompt_id, right_candidate and right_champion; None
    if no prompt has a checkable answer.
    """
    checked = samples.dropna(subset=["right_candidate", "right_champion"])
    if checked.empty:
        return None
    paired = checked.assign(difference=checked["right_candidate"] - checked["right_champion"])
    candidate, champion, difference = (
        mean_over_prompts(paired, column, seed=seed, n_resamples=n_resamples)
        for column in ("right_candidate", "right_champion", "difference")
    )
    return CheckableAnswers(candidate, champion, difference)


def compare_by_category(
    samples: pd.DataFrame, *, min_prompts: int, seed: int, n_resamples: int = 2000
) -> tuple[CategoryComparison, ...]:
    """The comparison in each category with at least `min_prompts` prompts, largest first; smaller
    ones show chance.
    """
    sizes = samples.groupby("category")["prompt_id"].nunique()
    large = sizes[sizes >= min_prompts].sort_index().sort_values(ascending=False, kind="stable")
    drawn: dict[str, Any] = {"seed": seed, "n_resamples": n_resamples}
    compared = []
    for category in large.index:
        own = samples[samples["category"] == category]
        paired = own.assign(reward_difference=own["score_candidate"] - own["score_champion"])
        answers = compare_checkable_answers(own, **drawn)
        compared.append(
            CategoryComparison(
                category=str(category),
                win_rate=win_rate(own, **drawn),
                reward_difference=mean_over_prompts(paired, "reward_difference", **drawn),
                checkable_difference=answers.difference if answers else None,
            )
        )
    return tuple(compared)


def compare_by_dimension(
    samples: pd.DataFrame,
    heads: Sequence[DimensionHead],
    scores: Mapping[str, Floats],
    *,
    seed: int,
    n_resamples: int = 2000,
) -> tuple[DimensionComparison, ...]:
    """The comparison in the dimension of each of `heads`, without figures where it has none.
    `scores` by dimension are those of all candidate's completions in `samples`, then of all
    champion's.
    """
    drawn: dict[str, Any] = {"seed": seed, "n_resamples": n_resamples}
    compared = []
    for head in heads:
        if not head.has_head:
            compared.append(DimensionComparison(head=head))
            continue
        candidate, champion = np.split(scores[head.dimension], 2)
        own = samples.assign(
            score_candidate=candidate, score_champion=champion, gap=candidate - champion
        )
        compared.append(
            DimensionComparison(
                head=head,
                win_rate=win_rate(own, **drawn),
                score_difference=mean_over_prompts(own, "gap", **drawn),
            )
        )
    return tuple(compared)


N_STEPS = 12  # of Newton's method; the loss is convex and has three parameters
# A normal prior on the log odds at equal length, of more length and of being longer at all: it
# keeps them finite where one policy wins every prompt, and where length separates wins from losses.
# Where all texts of the candidate are longer, nothing tells these apart: then the length has won.
PRECISION = np.array([1.0, 0.01, 0.01])
AT_ONCE = 4_000_000  # numbers held per resampled block


def length_controlled_win_rate(
    samples: pd.DataFrame, member_wins: Floats, *, seed: int, n_resamples: int = 2000
) -> Interval:
    """Win rate at equal length, after Dubois et al. 2024, with a bootstrap interval over prompts,
    widened by the judge's error as `member_wins` (M, n), the wins by each of its members, show it.

    A logistic regression of the wins on tanh(difference of the lengths / its root mean square) and
    its sign gives the probability of a win at a difference of 0. Unlike AlpacaEval's, it has no
    term for the difficulty of each prompt. `samples` has prompt_id, win, completion_candidate and
    completion_champion. It is the plain win rate where all lengths are equal.
    """
    win = samples["win"].to_numpy(dtype=np.float64)
    lengths = [samples[f"completion_{role}"].str.len() for role in ("candidate", "champion")]
    difference = (lengths[0] - lengths[1]).to_numpy(dtype=np.float64)
    spread = float(np.sqrt((difference**2).mean()))
    if spread == 0:
        return win_rate(samples, member_wins, seed=seed, n_resamples=n_resamples)
    index = group_index(samples["prompt_id"].to_numpy(), len(samples))
    n_prompts = int(index.max()) + 1
    # every prompt counts once, however many samples it has
    own = 1 / np.bincount(index)[index]
    x = np.tanh(difference / spread)
    (log_odds,), (variance,) = _fit_at_equal_length(x, win, own[None, :])
    by_member = [
        expit(_fit_at_equal_length(x, outcome, own[None, :])[0][0]) for outcome in member_wins
    ]
    rng = np.random.default_rng([seed, n_prompts])
    drawn: list[Floats] = []
    at_once = max(1, AT_ONCE // len(win))
    for start in range(0, n_resamples, at_once):
        size = min(at_once, n_resamples - start)
        times = rng.multinomial(n_prompts, np.full(n_prompts, 1 / n_prompts), size=size)
        drawn.append(_fit_at_equal_length(x, win, times[:, index] * own)[0])
    # resamples do not show what no text shows; the curvature of the loss does
    bounds = log_odds + 1.96 * np.sqrt(variance) * np.array([-1, 1])
    low, high = np.quantile(np.concatenate(drawn), [0.025, 0.975])
    interval = Interval(
        value=float(expit(log_odds)),
        low=float(expit(min(low, bounds[0]))),
        high=float(expit(max(high, bounds[1]))),
        n=n_prompts,
    )
    return add_judge_error(interval, np.array(by_member))


def _fit_at_equal_length(x: Floats, win: Floats, weights: Floats) -> tuple[Floats, Floats]:
    """Log odds of a win at x = 0 for each row of weights (B, n), and their variance: (B,) each."""
    theta = np.zeros((len(weights), len(PRECISION)))
    design = np.stack([np.ones_like(x), x, np.sign(x)], axis=1)
    hessian = np.empty((len(weights), len(PRECISION), len(PRECISION)))
    for _ in range(N_STEPS):
        p = 1 / (1 + np.exp(-np.clip(theta @ design.T, -30, 30)))
        gradient = (weights * (win - p)) @ design - theta * PRECISION
        curvature = weights * p * (1 - p)
        hessian[:] = np.einsum("bn,ni,nj->bij", curvature, design, design) + np.diag(PRECISION)
        step = np.linalg.solve(hessian, gradient[:, :, None])[:, :, 0]
        theta += np.clip(step, -4, 4)
    return theta[:, 0], np.linalg.inv(hessian)[:, 0, 0]

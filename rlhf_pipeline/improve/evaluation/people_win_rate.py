"""Estimates people's mean preference for a candidate from their blind votes and the judge's scores.

A prompt is drawn at random with replacement for each vote, so every vote has the mean preference as
its expectation, and the judge's probability of the same prompt, minus its mean over all prompts, is
subtracted as far as earlier votes show that it predicts them (prediction-powered inference with
power tuning: Angelopoulos et al. 2023, 2024). The interval is a betting confidence sequence
(Waudby-Smith and Ramdas 2024): it may be read after every vote and acted upon. It holds whatever
the judge's error, and is narrow where the judge is good.
"""

from bisect import bisect
from dataclasses import dataclass
from typing import Literal

import numpy as np

from rlhf_pipeline.core.intervals import Floats
from rlhf_pipeline.core.records import Interval

# Bets of several sizes, averaged: small ones win on slight preferences, large ones on clear ones.
BETS = (0.02, 0.04, 0.07, 0.11, 0.17, 0.26, 0.4, 0.6, 0.9, 1.3)
MAX_SHARE_AT_RISK = 0.9  # of the wealth, in one vote
MAX_POWER = 1.5
GRID = np.linspace(0, 1, 401)  # means that are tried; the interval is rounded outwards to them


@dataclass(frozen=True)
class PeopleEstimate:
    """The win rate by people's votes, valid at whatever vote it is read."""

    win_rate: Interval
    decision: Literal["better", "worse", "too_close", "open"]
    power: float  # weight of the judge's probabilities in the next batch; 0 = votes alone
    decided_at: int | None = None  # votes after which the interval first excluded 0.5

    @property
    def half_width(self) -> float:
        return (self.win_rate.high - self.win_rate.low) / 2


def estimate_people_win_rate(
    votes: Floats,
    probabilities: Floats,
    frozen_probabilities: Floats,
    *,
    batch_size: int = 20,
    level: float = 0.95,
    smallest_effect: float = 0.05,
) -> PeopleEstimate:
    """`votes` (n,) are 1 for the candidate, 0 for the champion and 0.5 for a tie, in the order in
    which their cards were dealt; `probabilities` (n,) are the judge's for the same prompts, and
    `frozen_probabilities` (N,) those of all prompts, each scored before the first vote.

    The decision is `better` or `worse` once the interval has ever excluded 0.5, `too_close` once
    its half-width is below `smallest_effect`, else `open`.

    >>> rng = np.random.default_rng(0)
    >>> scores = rng.uniform(0.3, 1.0, 500)
    >>> dealt = rng.choice(scores, 300)
    >>> estimate = estimate_people_win_rate(
    ...     (rng.random(300) < dealt).astype(float), dealt, scores
    ... )
    >>> estimate.decision, estimate.win_rate.low < 0.65 < estimate.win_rate.high
    ('better', True)
    """
    powers = tune_powers(votes, probabilities, batch_size)
    outcomes, lows, highs = adjust_votes(votes, probabilities, frozen_probabilities, powers)
    limit = np.log(2 / (1 - level))
    low, high = _find_ends(outcomes, lows, highs, limit)
    step = GRID[1] if len(votes) else 0.0
    value = float(np.clip(outcomes.mean(), low, high)) if len(votes) else 0.5
    rate = Interval(
        value=value,
        low=float(max(low - step, 0)),
        high=float(min(high + step, 1)),
        n=len(votes),
        level=level,
    )
    above, below = log_wealth(outcomes, lows, highs, 0.5)
    estimate = PeopleEstimate(rate, "open", float(powers[-1]))
    crossed = np.flatnonzero(np.maximum(above, below) >= limit)
    if len(crossed):
        first = int(crossed[0])
        decision: Literal["better", "worse"] = "better" if above[first] >= limit else "worse"
        return PeopleEstimate(rate, decision, estimate.power, first + 1)
    if estimate.half_width < smallest_effect:
        return PeopleEstimate(rate, "too_close", estimate.power)
    return estimate


def tune_powers(votes: Floats, probabilities: Floats, batch_size: int) -> Floats:
    """The weight of the judge's probability in each vote and in the next one (n + 1,): the slope of
    votes on probabilities over earlier batches alone, so that no vote weighs itself. It begins at
    one half, as one vote that half agreed would give.
    """
    powers = np.zeros(len(votes) + 1)
    for start in range(0, len(powers), batch_size):
        earlier, votes_before = probabilities[:start], votes[:start]
        centred = earlier - earlier.mean() if start else earlier
        slope = (centred @ votes_before + 0.5) / (centred @ centred + 1)
        powers[start : start + batch_size] = np.clip(slope, 0, MAX_POWER)
    return powers


def adjust_votes(
    votes: Floats, probabilities: Floats, frozen_probabilities: Floats, powers: Floats
) -> tuple[Floats, Floats, Floats]:
    """Each vote less what the judge predicts of it, and the lowest and the highest such value that
    any prompt could give, all (n,).
    """
    mean, weights = frozen_probabilities.mean(), powers[: len(votes)]
    lows = -weights * (frozen_probabilities.max() - mean)
    highs = 1 + weights * (mean - frozen_probabilities.min())
    return votes - weights * (probabilities - mean), lows, highs


def log_wealth(outcomes: Floats, lows: Floats, highs: Floats, mean: float) -> tuple[Floats, Floats]:
    """Log of the wealth after each vote (n,) of who bets that the true mean is above `mean`, and of
    who bets that it is below. If it is `mean`, either reaches 2/α with probability α/2 at most.
    """
    return log_gains(outcomes, lows, mean), log_gains(-outcomes, -highs, -mean)


def log_gains(outcomes: Floats, lows: Floats, mean: float, scale: Floats | float = 1.0) -> Floats:
    """Log of the wealth after each outcome (n,) of who bets that the true mean is above `mean`.
    `scale` (n,) multiplies the bets, where outcomes vary more than votes.
    """
    bets = np.array(BETS)[:, None] * scale
    shares = np.minimum(bets, MAX_SHARE_AT_RISK / np.maximum(mean - lows, 1e-9))
    gains = np.log1p(shares * (outcomes - mean)).cumsum(axis=1)
    return np.asarray(np.logaddexp.reduce(gains, axis=0) - np.log(len(BETS)), dtype=np.float64)


def _find_ends(outcomes: Floats, lows: Floats, highs: Floats, limit: float) -> tuple[float, float]:
    """The lowest and the highest mean of GRID at which neither wealth ever reached `limit`; 0 and 1
    where there is none.

    The wealth of who bets on a higher mean falls with the mean at every vote, and that of the other
    grows, so that each end can be bisected.
    """
    means: list[float] = GRID.tolist()
    start = bisect(means, 0, key=lambda mean: _peaks(outcomes, lows, highs, mean)[0] < limit)
    end = bisect(means, 0, key=lambda mean: _peaks(outcomes, lows, highs, mean)[1] >= limit)
    return (means[start], means[end - 1]) if start < end else (0.0, 1.0)


def _peaks(outcomes: Floats, lows: Floats, highs: Floats, mean: float) -> tuple[float, float]:
    """The highest log wealth that either ever had; 0 before the first vote."""
    above, below = log_wealth(outcomes, lows, highs, mean)
    return float(above.max(initial=0.0)), float(below.max(initial=0.0))

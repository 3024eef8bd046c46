"""Tests of experiments that may be read after every session: effects, the split, and harm.

Effects are means of scores that are unbiased given the past (augmented inverse probability
weighting: Robins, Rotnitzky and Zhao 1994): a session's value by its known chance of its arm, less
what earlier sessions predict. So they hold through steps of the ramp and trends of time. Of
metrics from 0 to 1 the interval is a betting confidence sequence (Waudby-Smith and Ramdas 2024),
of others the asymptotic one of Waudby-Smith et al. (2024). The split is tested as by Lindon and
Malek (2022).
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from rlhf_pipeline.core.intervals import Floats
from rlhf_pipeline.core.records import Interval
from rlhf_pipeline.improve.evaluation.people_win_rate import log_gains

LEVEL = 0.95
LIMIT = np.log(2 / (1 - LEVEL))  # of the log wealth of either side
STEPS = 12  # of a bisection: ends of intervals are exact to 2 ** -12
PRIOR = 10.0  # sessions for which both arms' common mean counts in the prediction of an arm
FIRST_LOOK = 50  # sessions, before which an asymptotic interval is not given
TUNED_FOR = 500  # sessions at which an asymptotic interval is narrowest
SPLIT_PRIOR = 100.0  # sessions for which the planned split counts
BET_SCALE = 4.0  # of a score's precision: with a split p its variance grows as 1 / (p (1 - p))
N_POINTS = 24  # of either end of a traced interval
# multiples of the tolerated odds that the test of harm bets on
HARMS = np.array([2.0, 4, 8, 16])


@dataclass(frozen=True)
class Sessions:
    """Values of one metric in order of time, the arm and the treatment's share then, all (n,)."""

    values: Floats
    is_treated: npt.NDArray[np.bool_]
    splits: Floats


@dataclass(frozen=True)
class Scores:
    """Unbiased scores of the effect, the bounds that each has, and the size of bets on it, all
    (n,).
    """

    outcomes: Floats
    lows: Floats
    highs: Floats
    bets: Floats

    @property
    def mirrored(self) -> "Scores":
        return Scores(-self.outcomes, -self.highs, -self.lows, self.bets)

    def log_wealth(self, mean: float) -> Floats:
        """Of who bets that the effect is above `mean`, after each session."""
        return log_gains(self.outcomes, self.lows, mean, self.bets)


@dataclass(frozen=True)
class Effect:
    """Treatment minus control; `sign` is 1 or -1 once the interval has ever excluded 0."""

    interval: Interval
    p_value: float
    sign: int


def score_effects(sessions: Sessions, *, prior: float = 0.5) -> Scores:
    """Scores of values from 0 to 1; `prior` predicts the first one. Sessions without a choice,
    where the treatment's share was 1, are left out.
    """
    chosen = sessions.splits < 1
    values, treated = sessions.values[chosen], sessions.is_treated[chosen]
    p = sessions.splits[chosen]
    common = (prior + _sum_before(values)) / (1 + np.arange(len(values)))

    def predict(is_arm: npt.NDArray[np.bool_]) -> Floats:
        n = _sum_before(is_arm.astype(np.float64))
        return np.asarray((PRIOR * common + _sum_before(values * is_arm)) / (PRIOR + n))

    treatment, control = predict(treated), predict(~treated)
    shift = treatment - control
    outcomes = shift + np.where(treated, (values - treatment) / p, -(values - control) / (1 - p))
    lows = shift + np.minimum(-treatment / p, -(1 - control) / (1 - p))
    highs = shift + np.maximum((1 - treatment) / p, control / (1 - p))
    return Scores(outcomes, lows, highs, BET_SCALE * p * (1 - p))


def score_preferences(votes: Floats) -> Scores:
    """Scores of votes (n,): 1 for the treatment, 0 for the control, one half for a tie."""
    bounds = np.ones(len(votes))
    return Scores(2 * votes - 1, -bounds, bounds, bets=bounds)


def estimate_share_effect(scores: Scores) -> Effect:
    """The effect on a metric from 0 to 1. Its interval holds for any number of sessions."""
    up, down = _peak(scores, 0.0), _peak(scores.mirrored, 0.0)
    low, high = _find_low(scores), -_find_low(scores.mirrored)
    value = float(scores.outcomes.mean()) if len(scores.outcomes) else 0.0
    interval = Interval(
        value=float(np.clip(value, low, high)),
        low=low,
        high=high,
        n=len(scores.outcomes),
        level=LEVEL,
    )
    sign = 1 if up >= max(LIMIT, down) else -1 if down >= LIMIT else 0
    return Effect(interval, min(1.0, 2 * float(np.exp(-max(up, down)))), sign)


def estimate_mean_effect(sessions: Sessions) -> Effect | None:
    """The effect on a metric without bounds, such as seconds; None before FIRST_LOOK sessions."""
    n, means, halves, deviations = _trace_mean(sessions)
    if not len(n):
        return None
    excluded = np.flatnonzero(np.abs(means) > halves)
    sign = int(np.sign(means[excluded[0]])) if len(excluded) else 0
    value, half = float(means[-1]), float(halves[-1])
    scale = n * _tuning() + 1
    # the level at which the interval would end at 0, the smallest at any look
    exponents = means**2 * n**2 * _tuning() / (2 * deviations**2 * scale)
    p_value = float(np.min(np.sqrt(scale) * np.exp(-exponents)))
    interval = Interval(value=value, low=value - half, high=value + half, n=int(n[-1]), level=LEVEL)
    return Effect(interval, min(1.0, p_value), sign)


def trace_mean(sessions: Sessions) -> tuple[Floats, Floats, Floats]:
    """As `trace_share`, of a metric without bounds."""
    n, means, halves, _ = _trace_mean(sessions)
    chosen = np.unique(np.geomspace(1, max(len(n), 1), 2 * N_POINTS).astype(int)) - 1
    chosen = chosen[chosen < len(n)]
    return n[chosen], (means - halves)[chosen], (means + halves)[chosen]


def trace_share(scores: Scores) -> tuple[Floats, Floats, Floats]:
    """The interval over time: numbers of sessions and both ends then, all (k,)."""
    n_scores = len(scores.outcomes)
    low_times, lows = _trace_low(scores)
    high_times, highs = _trace_low(scores.mirrored)
    times = np.unique(np.concatenate(([1.0], low_times, high_times, [n_scores])))
    times = times[(times > 0) & (times <= n_scores)]

    def at(marks: Floats, ends: Floats) -> Floats:
        return np.array([ends[marks <= time].max(initial=-1.0) for time in times])

    return times, at(low_times, lows), -at(high_times, highs)


def find_split_p_value(
    n_treated: Sequence[int], n_control: Sequence[int], splits: Sequence[float]
) -> float:
    """Of the numbers of sessions at each step of the ramp; valid at every look."""
    from scipy.special import betaln

    treated, control = np.asarray(n_treated, float), np.asarray(n_control, float)
    p = np.asarray(splits, float)
    use = p < 1
    treated, control, p = treated[use], control[use], p[use]
    a, b = SPLIT_PRIOR * p, SPLIT_PRIOR * (1 - p)
    evidence = betaln(a + treated, b + control) - betaln(a, b)
    evidence -= treated * np.log(p) + control * np.log1p(-p)
    return float(min(1.0, np.exp(-evidence.sum())))


def find_harm_p_value(
    n_treated: Sequence[int],
    n_control: Sequence[int],
    splits: Sequence[float],
    max_ratio: float,
) -> float:
    """Of sessions with a fault, such as an error, at each step of the ramp: the treatment has them
    at most `max_ratio` times as often. Valid at every look: sessions enter at their first fault,
    and under that hypothesis their arms are drawn by the odds of the split times the ratio at most.
    """
    p = np.asarray(splits, float)
    use = p < 1
    treated = np.asarray(n_treated, float)[use]
    control = np.asarray(n_control, float)[use]
    odds = max_ratio * p[use] / (1 - p[use])
    likely, tolerated = HARMS[:, None] * odds, odds
    log_ratio = treated * (np.log(likely / (1 + likely)) - np.log(tolerated / (1 + tolerated)))
    log_ratio += control * (np.log1p(tolerated) - np.log1p(likely))
    evidence = np.logaddexp.reduce(log_ratio.sum(axis=1)) - np.log(len(HARMS))
    return float(min(1.0, np.exp(-evidence)))


def _sum_before(values: Floats) -> Floats:
    return np.asarray(np.concatenate(([0.0], np.cumsum(values)[:-1]))[: len(values)])


def _peak(scores: Scores, mean: float) -> float:
    return float(scores.log_wealth(mean).max(initial=0.0))


def _find_low(scores: Scores) -> float:
    """The largest mean that was ever excluded from below."""
    low, high = -1.0, 1.0
    for _ in range(STEPS + 1):
        middle = (low + high) / 2
        low, high = (middle, high) if _peak(scores, middle) >= LIMIT else (low, middle)
    return low


def _trace_low(scores: Scores) -> tuple[Floats, Floats]:
    """Means, and after how many sessions each was excluded from below (k,)."""
    end = _find_low(scores)
    means = end - np.geomspace(2.0**-STEPS, 1 + end + 2.0**-STEPS, N_POINTS)
    means = np.concatenate(([end], means[means > -1]))
    paths = [scores.log_wealth(mean) >= LIMIT for mean in means]
    times = np.array([1.0 + path.argmax() if path.any() else len(path) + 1.0 for path in paths])
    return times, means


def _tuning() -> float:
    """The square of the mixture's width that is narrowest at TUNED_FOR sessions."""
    alpha = 1 - LEVEL
    return float((-2 * np.log(alpha) + np.log(-2 * np.log(alpha)) + 1) / TUNED_FOR)


def _trace_mean(sessions: Sessions) -> tuple[Floats, Floats, Floats, Floats]:
    """From FIRST_LOOK on: numbers of sessions, means of scores, half-widths and deviations."""
    first = float(sessions.values[0]) if len(sessions.values) else 0.0
    # the first session only predicts the second
    outcomes = score_effects(sessions, prior=first).outcomes[1:]
    n = np.arange(1, len(outcomes) + 1, dtype=np.float64)
    means = np.cumsum(outcomes) / n
    deviations = np.sqrt(np.maximum(np.cumsum(outcomes**2) / n - means**2, 1e-18))
    scale = n * _tuning() + 1
    halves = deviations * np.sqrt(
        2 * scale / (n**2 * _tuning()) * np.log(np.sqrt(scale) / (1 - LEVEL))
    )
    looks = slice(FIRST_LOOK - 1, None)
    return n[looks], means[looks], halves[looks], deviations[looks]

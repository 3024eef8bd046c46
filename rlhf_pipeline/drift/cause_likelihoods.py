"""Log likelihoods of errors, sides, times, stated confidence and composition after a change."""

from math import lgamma

import numpy as np

from rlhf_pipeline.drift.base import Floats
from rlhf_pipeline.drift.changed_votes import UNKNOWN, Bools, ChangedVotes, Ints

PRIOR = 0.2  # probability of each cause
SHARES = np.array([0.12, 0.25, 0.42])  # of the annotators that are careless
# Careless annotators are alike: most of them prefer a side, or few; most are hasty, or few.
SIDE_A = np.array([0.1, 0.3, 0.5, 0.7, 0.9])  # share of a careless annotator's votes for side a
SIDE_A_PRIORS = np.array([[0.04, 0.08, 0.76, 0.08, 0.04], [0.2, 0.25, 0.1, 0.25, 0.2]])
HASTY = np.array([0.1, 0.9])
# None, then each share with each habit
CARELESS = np.array([0.0, *np.repeat(SHARES, len(SIDE_A_PRIORS) * len(HASTY))])
# A hasty annotator takes a third of the usual time, give or take; usual times vary a little too.
HASTE, HASTE_SPREAD, PACE_SPREAD = -np.log(3), 0.35, 0.15
RARE = 0.02  # share of newcomers' votes in ordinary times
MOST_HASTE, MOST_STRETCH = 4.0, 10.0  # of log likelihood, so that no single sign decides alone


def log_careless(votes: ChangedVotes, changed: Bools) -> Floats:
    """Log likelihood of each annotator's changed votes, were they careless: (A, careless)."""
    by_side = np.stack(
        [sum_by_annotator(votes, changed, _log_side(votes.side_a, share)) for share in SIDE_A],
        axis=1,
    )
    known = changed & np.isfinite(votes.pace)
    n = sum_by(votes.annotator[known], np.ones(int(known.sum())), len(votes.annotators))
    mean = sum_by(votes.annotator[known], votes.pace[known], len(votes.annotators))
    mean = mean / np.maximum(n, 1)
    noise = votes.pace_spread**2 / np.maximum(n, 1)
    if_hasty = _log_normal(mean, HASTE, HASTE_SPREAD**2 + noise)
    if_usual = _log_normal(mean, 0.0, PACE_SPREAD**2 + noise)
    ratio = np.where(n > 0, np.minimum(if_hasty - if_usual, MOST_HASTE), 0.0)
    found = np.stack(
        [
            np.logaddexp.reduce(by_side + np.log(prior), axis=1)
            + np.logaddexp(np.log(1 - hasty), np.log(hasty) + ratio)
            for prior in SIDE_A_PRIORS
            for hasty in HASTY
        ],
        axis=1,
    )
    found[np.array(votes.annotators) == UNKNOWN] = -np.inf
    nobody = np.full((len(found), 1), -np.inf)
    return np.concatenate([nobody, np.tile(found, len(SHARES))], axis=1)


def log_stretch(votes: ChangedVotes, changed: Bools, stretch: float) -> float:
    """Log likelihood ratio of the stated log odds, were they stretched."""
    known = changed & np.isfinite(votes.odds)
    if not known.any() or stretch == 1:
        return 0.0
    x, mean, spread = votes.odds[known], votes.usual_odds[known], votes.odds_spread
    stretched = _log_normal(x, mean * stretch, (spread * stretch) ** 2)
    ratio = float((stretched - _log_normal(x, mean, spread**2)).sum())
    return float(np.clip(ratio, -MOST_STRETCH, MOST_STRETCH))


def log_composition(votes: ChangedVotes, changed: Bools) -> float:
    """Log likelihood of the categories: as usual before the start; after it as usual, or in any
    other shares. So the votes with which the composition changed count as a likely start.
    """
    n = len(votes.categories)
    before, after = (
        sum_by(votes.category[rows], votes.weight[rows], n) for rows in (~changed, changed)
    )
    shares = np.log((votes.n_before + 0.5) / (votes.n_before + 0.5).sum())
    usual = float(after @ shares)
    total = float(after.sum())
    # Pólya's urn: any shares are equally likely
    other = lgamma(n) - lgamma(n + total) + sum(lgamma(1 + count) for count in after)
    either = np.logaddexp(np.log(1 - PRIOR) + usual, np.log(PRIOR) + other)
    return float(before @ shares) + float(either)


def log_arrival(votes: ChangedVotes, changed: Bools) -> float:
    """Log likelihood of the newcomers' votes: rare before the start; after it rare, or of any
    share.
    """
    if not votes.is_new.any():
        return 0.0
    by_new = votes.is_new[votes.annotator]
    rare = np.where(by_new, np.log(RARE), np.log(1 - RARE))
    n, n_new = int(changed.sum()), int(by_new[changed].sum())
    other = lgamma(n_new + 1) + lgamma(n - n_new + 1) - lgamma(n + 2)
    either = np.logaddexp(np.log(1 - PRIOR) + rare[changed].sum(), np.log(PRIOR) + other)
    return float(rare[~changed].sum() + either)


def turn(chance: Floats, share: float) -> Floats:
    return chance + share * (1 - 2 * chance)


def log_chance(error: Floats, chance: Floats) -> Floats:
    return np.asarray(np.where(error > 0.5, np.log(chance), np.log(1 - chance)))


def _log_side(side_a: Floats, share: float) -> Floats:
    chance = np.where(side_a > 0.5, share, 1 - share)
    return np.asarray(np.log(np.where(np.isfinite(side_a), chance, 0.5)))


def _log_normal(x: Floats, mean: Floats | float, variance: Floats | float) -> Floats:
    return np.asarray(-0.5 * ((x - mean) ** 2 / variance + np.log(variance)))


def sum_by_annotator(votes: ChangedVotes, changed: Bools, values: Floats) -> Floats:
    return sum_by(votes.annotator[changed], (votes.weight * values)[changed], len(votes.annotators))


def sum_by(key: Ints, values: Floats, n: int) -> Floats:
    return np.asarray(np.bincount(key, weights=values, minlength=n), dtype=float)

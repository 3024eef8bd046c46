"""Weighs every combination of causes by how well it predicts the errors after a change.

Each cause is a statement about single votes: taste raises the expected error of all; a category or
the newcomers prefer the other side in a share of their comparisons; the votes of careless
annotators depend on the side shown alone; calibration stretches the stated log odds. Grids of
their sizes, and of the vote at which the change began, are multiplied out, so that noise is
averaged over instead of being explained (Bayesian model averaging, Hoeting et al. 1999).
"""

from collections.abc import Sequence
from dataclasses import dataclass, field
from math import lgamma

import numpy as np

from rlhf_pipeline.drift.base import Floats
from rlhf_pipeline.drift.changed_votes import STRETCHES, UNKNOWN, Bools, ChangedVotes, Ints
from rlhf_pipeline.records import CauseName

TASTE = np.array([0, 0.04, 0.08, 0.12, 0.16, 0.2, 0.25, 0.32])  # rise of the error rate
TURNED = np.array([0.3, 0.6, 1.0])  # share of a category's comparisons whose winner has changed
OTHER_TASTE = np.array([0, 0.3, 0.5, 0.7, 0.9, 1.0])  # the same, of newcomers
CARELESS = np.array([0, 0.1, 0.2, 0.3, 0.45])  # share of the annotators
SIDE_A = np.array([0.1, 0.3, 0.5, 0.7, 0.9])  # share of a careless annotator's votes for side a
SIDE_A_PRIOR = np.array([0.1, 0.15, 0.5, 0.15, 0.1])
# Probability of each cause. Taste has less: it fits any rise, also one by chance, and a detector
# reports those that happen to be large.
PRIOR, TASTE_PRIOR = 0.2, 0.1
# A hasty annotator takes a third of the usual time, give or take; usual times vary a little too.
HASTE, HASTE_SPREAD, PACE_SPREAD = -np.log(3), 0.35, 0.15
RARE = 0.02  # share of newcomers' votes in ordinary times
# What the stated confidence alone is worth, in votes before the change
STATED_VOTES = 30
MOST_HASTE, MOST_STRETCH = 4.0, 10.0  # of log likelihood, so that no single sign decides alone


@dataclass
class CauseWeights:
    """Averages over all combinations: the rise by cause and who is behind it."""

    rises: dict[CauseName, float] = field(default_factory=dict)
    category: Floats = field(default_factory=lambda: np.zeros(0))
    careless: Floats = field(default_factory=lambda: np.zeros(0))
    stretch: float = 1.0
    start: float = 0.0
    before: float = 0.0  # the model's error rate


def weigh_causes(
    votes: ChangedVotes, starts: Sequence[tuple[int, float]], before: float
) -> CauseWeights:
    """Average the rise that each cause contributes over all combinations."""
    parts = [
        (stretch, *_average_at(votes, start, stretch, prior))
        for start, prior in starts
        for stretch in votes.expected
        if _is_possible(votes, start, stretch)
    ]
    weights = np.array([weight for _, weight, _ in parts])
    weights = np.exp(weights - np.logaddexp.reduce(weights))
    found = CauseWeights(before=before)
    for name in parts[0][2].rises:
        size = sum(w * part.rises[name] for w, (*_, part) in zip(weights, parts, strict=True))
        found.rises[name] = max(0.0, float(size - (before if name == "mix" else 0.0)))
    found.category = sum(w * part.category for w, (*_, part) in zip(weights, parts, strict=True))
    found.careless = sum(w * part.careless for w, (*_, part) in zip(weights, parts, strict=True))
    found.stretch = float(
        np.exp(sum(w * np.log(part[0]) for w, part in zip(weights, parts, strict=True)))
    )
    found.start = float(sum(w * part.start for w, (*_, part) in zip(weights, parts, strict=True)))
    return found


def _is_possible(votes: ChangedVotes, start: int, stretch: float) -> bool:
    """Without stated confidence, nothing is stretched; what is clearly not stretched costs time."""
    if stretch == 1:
        return True
    changed = np.arange(len(votes.error)) >= start
    known = bool(np.isfinite(votes.odds[changed]).any())
    return known and _log_stretch(votes, changed, stretch) > -MOST_STRETCH


def _average_at(
    votes: ChangedVotes, start: int, stretch: float, prior: float
) -> tuple[float, CauseWeights]:
    """The log weight of one start and stretch, and the averages given these."""
    changed = np.arange(len(votes.error)) >= start
    base = np.where(changed, votes.expected[stretch], votes.expected[1.0])
    fixed = float((votes.weight * _log_chance(votes.error, base))[~changed].sum())
    fixed += prior + _log_stretch(votes, changed, stretch)
    fixed += np.log(1 - PRIOR if stretch == 1 else PRIOR / (len(STRETCHES) - 1))
    fixed += _log_composition(votes, changed) + _log_arrival(votes, changed)
    own = _annotators_alone(votes, changed, base)  # (A, taste, group)
    careless = _careless(votes, changed)  # (A,)
    new = np.stack(
        [
            _by_annotator(votes, changed, _log_chance(votes.error, _turn(base, share)))
            for share in OTHER_TASTE[1:]
        ],
        axis=1,
    )  # (A, other taste)
    is_new = votes.is_new
    with np.errstate(divide="ignore"):
        kept, lost = np.log(1 - CARELESS), np.log(CARELESS)
    mixed = np.logaddexp(own[..., None] + kept, careless[:, None, None, None] + lost)
    mixed_new = np.logaddexp(new[..., None] + kept, careless[:, None, None] + lost)
    established = mixed[~is_new].sum(axis=0)  # (taste, group, careless)
    alike = (established + mixed[is_new].sum(axis=0))[..., None]
    unlike = established[..., None] + mixed_new[is_new].sum(axis=0).T
    log_weight = np.concatenate([alike, unlike], axis=-1)  # (taste, group, careless, other taste)
    log_weight = log_weight + _log_prior(votes)
    total = float(np.logaddexp.reduce(log_weight, axis=None))
    weight = np.exp(log_weight - total)
    # probability that each annotator is careless, in each combination
    p_careless = np.exp(careless[:, None, None, None] + lost - mixed)
    p_careless_new = np.exp(careless[:, None, None] + lost - mixed_new)
    chance = np.einsum("atgc,tgc->a", p_careless, weight.sum(axis=-1))
    chance[is_new] = np.einsum("atgc,tgc->a", p_careless[is_new], weight[..., 0]) + np.einsum(
        "aoc,tgco->a", p_careless_new[is_new], weight[..., 1:]
    )
    return fixed + total, _summarise(votes, changed, base, weight, chance, stretch)


def _summarise(
    votes: ChangedVotes,
    changed: Bools,
    base: Floats,
    weight: Floats,
    chance: Floats,
    stretch: float,
) -> CauseWeights:
    n = max(1, int(changed.sum()))
    careful = 1 - chance[votes.annotator]
    by_new = votes.is_new[votes.annotator] & changed
    of_others = weight.sum(axis=(0, 1, 2))  # by other taste
    if_alike = careful * changed * np.where(by_new, of_others[0], 1.0)
    of_taste, of_group = weight.sum(axis=(1, 2, 3)), weight.sum(axis=(0, 2, 3))
    by_group = of_group[1:].reshape(len(votes.categories), len(TURNED))
    gain = np.bincount(
        votes.category, weights=if_alike * (1 - 2 * base), minlength=len(votes.categories)
    )
    of_rise, of_unfamiliar = of_taste[: len(TASTE)], of_taste[len(TASTE) :]
    unfamiliar = float(of_unfamiliar @ TASTE[1:]) * float(if_alike @ votes.is_unfamiliar) / n
    rises: dict[CauseName, float] = {
        "taste": float(of_rise @ TASTE) * float(if_alike.sum()) / n,
        "category": float((by_group @ TURNED) @ gain) / n,
        "newcomers": float(of_others @ OTHER_TASTE)
        * float(((1 - 2 * base) * by_new * careful).sum())
        / n,
        "carelessness": float((chance[votes.annotator] * (0.5 - base) * changed).sum()) / n,
        "mix": float(base[changed].mean()) + unfamiliar,
        "calibration": float(np.abs(base - votes.expected[1.0])[changed].sum()) / n,
    }
    return CauseWeights(
        rises=rises,
        category=by_group.sum(axis=1),
        careless=chance,
        stretch=stretch,
        start=float(len(changed) - n),
    )


def _annotators_alone(votes: ChangedVotes, changed: Bools, base: Floats) -> Floats:
    """Log likelihood of each annotator's changed votes, were they careful: (A, taste, 1 + groups);
    the first group is none, the others are categories by share turned.
    """
    n_a, n_c = len(votes.annotators), len(votes.categories)
    key = (votes.annotator * n_c + votes.category)[changed]
    error, base, weight = votes.error[changed], base[changed], votes.weight[changed]
    n_after = np.bincount(votes.category[changed], minlength=n_c)
    n_before = votes.n_before + STATED_VOTES
    # The level before the change is known from so many votes only, which doubles the variance of a
    # rise where there are as many before as after it.
    certainty = n_before / (n_before + n_after)
    of_all = n_before.sum() / (n_before.sum() + n_after.sum())
    usual = _sum_by(key, weight * _log_chance(error, base), n_a * n_c).reshape(n_a, n_c)
    found = np.zeros((n_a, len(_rises(votes)), 1 + n_c * len(TURNED)))
    for t, rise in enumerate(_rises(votes)):
        shifted = np.minimum(base + rise[changed], 0.98)
        straight = _sum_by(key, weight * _log_chance(error, shifted), n_a * n_c).reshape(n_a, n_c)
        risen = usual + of_all * (straight - usual)
        found[:, t] = risen.sum(axis=1)[:, None]
        for s, share in enumerate(TURNED):
            log_chance = weight * _log_chance(error, _turn(shifted, share))
            turned = _sum_by(key, log_chance, n_a * n_c).reshape(n_a, n_c)
            found[:, t, 1 + s :: len(TURNED)] += certainty * (turned - straight)
    return found


def _rises(votes: ChangedVotes) -> list[Floats]:
    """Rises of the expected error: those of everybody's taste, then those of the votes on what is
    new to the model.
    """
    everywhere = [np.full(len(votes.error), rise) for rise in TASTE]
    return everywhere + [rise * votes.is_unfamiliar for rise in TASTE[1:]]


def _careless(votes: ChangedVotes, changed: Bools) -> Floats:
    """Log likelihood of each annotator's changed votes, were they careless: (A,)."""
    by_side = np.stack(
        [_by_annotator(votes, changed, _log_side(votes.side_a, share)) for share in SIDE_A],
        axis=1,
    )
    known = changed & np.isfinite(votes.pace)
    n = _sum_by(votes.annotator[known], np.ones(int(known.sum())), len(votes.annotators))
    mean = _sum_by(votes.annotator[known], votes.pace[known], len(votes.annotators))
    mean = mean / np.maximum(n, 1)
    noise = votes.pace_spread**2 / np.maximum(n, 1)
    if_hasty = _log_normal(mean, HASTE, HASTE_SPREAD**2 + noise)
    if_usual = _log_normal(mean, 0.0, PACE_SPREAD**2 + noise)
    ratio = np.where(n > 0, np.minimum(if_hasty - if_usual, MOST_HASTE), 0.0)
    hasty = np.logaddexp(0.0, ratio) - np.log(2)
    found = np.logaddexp.reduce(by_side + np.log(SIDE_A_PRIOR), axis=1) + hasty
    return np.where(np.array(votes.annotators) == UNKNOWN, -np.inf, found)


def _log_stretch(votes: ChangedVotes, changed: Bools, stretch: float) -> float:
    """Log likelihood ratio of the stated log odds, were they stretched."""
    known = changed & np.isfinite(votes.odds)
    if not known.any() or stretch == 1:
        return 0.0
    x, mean, spread = votes.odds[known], votes.usual_odds[known], votes.odds_spread
    stretched = _log_normal(x, mean * stretch, (spread * stretch) ** 2)
    ratio = float((stretched - _log_normal(x, mean, spread**2)).sum())
    return float(np.clip(ratio, -MOST_STRETCH, MOST_STRETCH))


def _log_composition(votes: ChangedVotes, changed: Bools) -> float:
    """Log likelihood of the categories: as usual before the start; after it as usual, or in any
    other shares. So the votes with which the composition changed count as a likely start.
    """
    n = len(votes.categories)
    before, after = (
        _sum_by(votes.category[rows], votes.weight[rows], n) for rows in (~changed, changed)
    )
    shares = np.log((votes.n_before + 0.5) / (votes.n_before + 0.5).sum())
    usual = float(after @ shares)
    total = float(after.sum())
    # Pólya's urn: any shares are equally likely
    other = lgamma(n) - lgamma(n + total) + sum(lgamma(1 + count) for count in after)
    either = np.logaddexp(np.log(1 - PRIOR) + usual, np.log(PRIOR) + other)
    return float(before @ shares) + float(either)


def _log_arrival(votes: ChangedVotes, changed: Bools) -> float:
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


def _log_prior(votes: ChangedVotes) -> Floats:
    """Of each combination of taste, group, share of careless annotators and other taste."""
    n_groups = len(votes.categories) * len(TURNED)
    n_rises = len(TASTE) - 1
    unfamiliar = PRIOR if votes.is_unfamiliar.any() else 0.0
    everywhere = TASTE_PRIOR * (1 - unfamiliar)
    taste = np.log(
        [1 - everywhere - unfamiliar]
        + [everywhere / n_rises] * n_rises
        + [max(unfamiliar, 1e-300) / n_rises] * n_rises
    )
    group, careless, other = (
        np.log(np.array([1 - prior] + [prior / n] * n))
        for prior, n in (
            (PRIOR, n_groups),
            (PRIOR, len(CARELESS) - 1),
            (PRIOR, len(OTHER_TASTE) - 1),
        )
    )
    is_named = np.array([name != UNKNOWN for name in votes.categories])
    if len(votes.categories) == 1:  # one category is everybody
        is_named[:] = False
    group[1:][~np.repeat(is_named, len(TURNED))] = -np.inf
    if not votes.is_new.any():
        other = np.where(OTHER_TASTE > 0, -np.inf, 0.0)
    return np.asarray(taste[:, None, None, None] + group[:, None, None] + careless[:, None] + other)


def _turn(chance: Floats, share: float) -> Floats:
    return chance + share * (1 - 2 * chance)


def _log_chance(error: Floats, chance: Floats) -> Floats:
    return np.asarray(np.where(error > 0.5, np.log(chance), np.log(1 - chance)))


def _log_side(side_a: Floats, share: float) -> Floats:
    chance = np.where(side_a > 0.5, share, 1 - share)
    return np.asarray(np.log(np.where(np.isfinite(side_a), chance, 0.5)))


def _log_normal(x: Floats, mean: Floats | float, variance: Floats | float) -> Floats:
    return np.asarray(-0.5 * ((x - mean) ** 2 / variance + np.log(variance)))


def _by_annotator(votes: ChangedVotes, changed: Bools, values: Floats) -> Floats:
    return _sum_by(
        votes.annotator[changed], (votes.weight * values)[changed], len(votes.annotators)
    )


def _sum_by(key: Ints, values: Floats, n: int) -> Floats:
    return np.asarray(np.bincount(key, weights=values, minlength=n), dtype=float)

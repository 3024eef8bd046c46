"""Weighs every combination of causes by how well it predicts the errors after a change.

Each cause is a statement about single votes: taste raises the expected error of all; a category or
the newcomers prefer the other side in a share of their comparisons; the votes of careless
annotators depend on the side shown alone; calibration stretches the stated log odds. Grids of
their sizes, and of the vote at which the change began, are multiplied out, so that noise is
averaged over instead of being explained (Bayesian model averaging, Hoeting et al. 1999).
"""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Literal, NamedTuple

import numpy as np

from rlhf_pipeline.drift.base import Floats
from rlhf_pipeline.drift.cause_likelihoods import (
    CARELESS,
    MOST_STRETCH,
    PRIOR,
    log_arrival,
    log_careless,
    log_chance,
    log_composition,
    log_stretch,
    sum_by,
    sum_by_annotator,
    turn,
)
from rlhf_pipeline.drift.changed_votes import STRETCHES, UNKNOWN, Bools, ChangedVotes
from rlhf_pipeline.records import CauseName

TASTE = np.array([0.05, 0.1, 0.15, 0.2, 0.28])  # rise of the error rate
TURNED_TASTE = np.array([0.7, 1.0])  # share of all comparisons whose winner has changed
TURNED = np.array([0.3, 0.6, 1.0])  # share of a category's comparisons whose winner has changed
OTHER_TASTE = np.array([0, 0.3, 0.5, 0.7, 0.9, 1.0])  # the same, of newcomers
# Probability that everybody's taste changed, less than that of other causes: it fits any rise, also
# one by chance, and a detector reports those that happen to be large.
TASTE_PRIOR = 0.1
NO_RISE = 0.02  # what raises less is no cause
# What the stated confidence alone is worth, in votes before the change
STATED_VOTES = 30


@dataclass
class CauseWeights:
    """Averages over all combinations: the rise by cause, and who is behind it."""

    rises: dict[CauseName, float] = field(default_factory=dict)
    largest: dict[CauseName, float] = field(default_factory=dict)  # how likely each explains most
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
        _average_at(votes, start, stretch, prior, before)
        for start, prior in starts
        for stretch in votes.expected
        if _is_possible(votes, start, stretch)
    ]
    weights = np.array([weight for weight, _ in parts])
    weights = np.exp(weights - np.logaddexp.reduce(weights))
    pairs = [(w, part) for w, (_, part) in zip(weights.tolist(), parts, strict=True)]
    return CauseWeights(
        rises={
            name: max(0.0, sum(w * part.rises[name] for w, part in pairs))
            for name in parts[0][1].rises
        },
        largest={
            name: sum(w * part.largest[name] for w, part in pairs) for name in parts[0][1].rises
        },
        category=np.asarray(sum(w * part.category for w, part in pairs)),
        careless=np.asarray(sum(w * part.careless for w, part in pairs)),
        stretch=float(np.exp(sum(w * np.log(part.stretch) for w, part in pairs))),
        start=sum(w * part.start for w, part in pairs),
        before=before,
    )


def _is_possible(votes: ChangedVotes, start: int, stretch: float) -> bool:
    """Without stated confidence, nothing is stretched; what is clearly not stretched costs time."""
    if stretch == 1:
        return True
    changed = np.arange(len(votes.error)) >= start
    known = bool(np.isfinite(votes.odds[changed]).any())
    return known and log_stretch(votes, changed, stretch) > -MOST_STRETCH


def _average_at(
    votes: ChangedVotes, start: int, stretch: float, prior: float, before: float
) -> tuple[float, CauseWeights]:
    """The log weight of one start and stretch, and the averages given these."""
    changed = np.arange(len(votes.error)) >= start
    expected = np.where(changed, votes.expected[stretch], votes.expected[1.0])
    base = votes.add_rhythm(expected)
    fixed = float((votes.weight * log_chance(votes.error, base))[~changed].sum())
    fixed += prior + log_stretch(votes, changed, stretch)
    fixed += np.log(1 - PRIOR if stretch == 1 else PRIOR / (len(STRETCHES) - 1))
    fixed += log_composition(votes, changed) + log_arrival(votes, changed)
    shifts = _list_shifts(votes, base)
    own = _annotators_alone(votes, changed, base, shifts)  # (A, shift, group)
    careless = log_careless(votes, changed)  # (A, careless)
    new = np.stack(
        [
            sum_by_annotator(votes, changed, log_chance(votes.error, turn(base, share)))
            for share in OTHER_TASTE[1:]
        ],
        axis=1,
    )  # (A, other taste)
    is_new = votes.is_new
    kept = np.log(1 - CARELESS)
    lost = np.log(np.maximum(CARELESS, 1e-9)) + careless  # (A, careless)
    mixed = np.logaddexp(own[..., None] + kept, lost[:, None, None])
    mixed_new = np.logaddexp(new[..., None] + kept, lost[:, None])
    established = mixed[~is_new].sum(axis=0)  # (shift, group, careless)
    alike = (established + mixed[is_new].sum(axis=0))[..., None]
    unlike = established[..., None] + mixed_new[is_new].sum(axis=0).T
    log_weight = np.concatenate([alike, unlike], axis=-1)  # (shift, group, careless, other taste)
    log_weight = log_weight + _log_prior(votes, shifts)
    total = float(np.logaddexp.reduce(log_weight, axis=None))
    weight = np.exp(log_weight - total)
    # probability that each annotator is careless, in each combination
    p_careless = np.exp(lost[:, None, None] - mixed)
    p_careless_new = np.exp(lost[:, None] - mixed_new)
    chance = np.einsum("asgc,sgc->a", p_careless, weight.sum(axis=-1))
    chance[is_new] = np.einsum("asgc,sgc->a", p_careless[is_new], weight[..., 0]) + np.einsum(
        "aoc,sgco->a", p_careless_new[is_new], weight[..., 1:]
    )
    rises = _rises(votes, changed, base, shifts, p_careless, p_careless_new)
    rises["mix"] = rises["mix"] + float(expected[changed].mean()) - before
    rises["calibration"] = np.array(np.abs(expected - votes.expected[1.0])[changed].mean())
    sizes = np.stack([np.broadcast_to(rise, weight.shape) for rise in rises.values()])
    is_rise = sizes.max(axis=0) >= NO_RISE
    is_rise[:, 1:] = True  # in a category, however few of the votes are in it
    likely = np.bincount(
        sizes.argmax(axis=0)[is_rise], weights=weight[is_rise], minlength=len(sizes)
    )
    of_group = weight.sum(axis=(0, 2, 3))[1:].reshape(len(votes.categories), len(TURNED))
    return fixed + total, CauseWeights(
        rises={name: float((weight * rise).sum()) for name, rise in rises.items()},
        largest=dict(zip(rises, likely.tolist(), strict=True)),
        category=of_group.sum(axis=1),
        careless=chance,
        stretch=stretch,
        start=float(start),
    )


def _rises(
    votes: ChangedVotes,
    changed: Bools,
    base: Floats,
    shifts: Sequence["Shift"],
    p_careless: Floats,
    p_careless_new: Floats,
) -> dict[CauseName, Floats]:
    """By how much each cause raises the error rate in each combination, in a shape that broadcasts
    to (shift, group, careless, other taste).
    """
    n, is_new = max(1, int(changed.sum())), votes.is_new
    n_a, n_c = len(votes.annotators), len(votes.categories)

    def by_annotator(values: Floats) -> Floats:
        return sum_by(votes.annotator[changed], values[changed], n_a) / n

    def sum_alike(values: Floats) -> Floats:
        """Over annotators (A, shift, group, careless); newcomers only if their taste is alike."""
        established, of_new = values[~is_new].sum(axis=0), values[is_new].sum(axis=0)
        others = np.repeat(established[..., None], len(OTHER_TASTE) - 1, axis=-1)
        return np.concatenate([(established + of_new)[..., None], others], axis=-1)

    careful = 1 - p_careless
    of_shift = np.stack([by_annotator(shift.rise) for shift in shifts], axis=1)
    shifted = sum_alike(careful * of_shift[:, :, None, None])
    key = (votes.annotator * n_c + votes.category)[changed]
    gain = sum_by(key, (1 - 2 * base)[changed] / n, n_a * n_c)
    turned = (gain.reshape(n_a, n_c, 1) * TURNED).reshape(n_a, -1)
    of_group = np.concatenate([np.zeros((n_a, 1)), turned], axis=1)
    of_careless = by_annotator(0.5 - base)
    of_new = by_annotator(1 - 2 * base)[is_new, None, None] * OTHER_TASTE[1:, None]
    newcomers = ((1 - p_careless_new[is_new]) * of_new).sum(axis=0).T  # (careless, other taste)
    careless = sum_alike(p_careless * of_careless[:, None, None, None])
    careless[..., 1:] += (p_careless_new[is_new] * of_careless[is_new, None, None]).sum(axis=0).T
    alone = np.zeros((len(CARELESS), 1))
    names = np.array([shift.cause for shift in shifts])[:, None, None, None]
    return {
        "taste": np.where(names == "taste", shifted, 0.0),
        "category": sum_alike(careful * of_group[:, None, :, None]),
        "newcomers": np.concatenate([alone, newcomers], axis=1),
        "carelessness": careless,
        "mix": np.where(names == "mix", shifted, 0.0),
    }


class Shift(NamedTuple):
    """A rise of the expected error of each vote, the same with everybody."""

    cause: Literal["none", "taste", "mix"]
    rise: Floats
    prior: float


def _list_shifts(votes: ChangedVotes, base: Floats) -> list[Shift]:
    """None but what is unknown of the level before the change; those of everybody's taste; those of
    the votes on what is new to the model.
    """
    n_before = float(votes.n_before.sum()) + votes.n_reference + STATED_VOTES
    rate = float(base.mean())
    # three points of a normal distribution
    unknown = np.sqrt(3 * rate * (1 - rate) / n_before)
    everywhere = [np.full(len(base), rise) for rise in TASTE]
    everywhere += [share * (1 - 2 * base) for share in TURNED_TASTE]
    unfamiliar = PRIOR if votes.is_unfamiliar.any() else 0.0
    taste = TASTE_PRIOR * (1 - unfamiliar)
    shifts = [
        Shift("none", np.full(len(base), unknown * at), (1 - taste - unfamiliar) * weight)
        for at, weight in ((-1, 1 / 6), (0, 2 / 3), (1, 1 / 6))
    ]
    shifts += [Shift("taste", rise, taste / len(everywhere)) for rise in everywhere]
    if unfamiliar:
        new = votes.is_unfamiliar
        shifts += [Shift("mix", rise * new, unfamiliar / len(TASTE)) for rise in TASTE]
    return shifts


def _annotators_alone(
    votes: ChangedVotes, changed: Bools, base: Floats, shifts: Sequence[Shift]
) -> Floats:
    """Log likelihood of each annotator's changed votes, were they careful: (A, shift, 1 + groups);
    the first group is none, the others are categories by share turned.
    """
    n_a, n_c = len(votes.annotators), len(votes.categories)
    key = (votes.annotator * n_c + votes.category)[changed]
    error, weight = votes.error[changed], votes.weight[changed]
    n_after = np.bincount(votes.category[changed], minlength=n_c)
    n_before = votes.n_before + STATED_VOTES
    # The level before the change is known from so many votes only, which doubles the variance of a
    # rise where there are as many before as after it.
    certainty = n_before / (n_before + n_after)
    found = np.zeros((n_a, len(shifts), 1 + n_c * len(TURNED)))
    for i, shift in enumerate(shifts):
        shifted = np.clip((base + shift.rise)[changed], 0.02, 0.98)
        straight = sum_by(key, weight * log_chance(error, shifted), n_a * n_c).reshape(n_a, n_c)
        found[:, i] = straight.sum(axis=1)[:, None]
        for s, share in enumerate(TURNED):
            chance = weight * log_chance(error, turn(shifted, share))
            turned = sum_by(key, chance, n_a * n_c).reshape(n_a, n_c)
            found[:, i, 1 + s :: len(TURNED)] += certainty * (turned - straight)
    return found


def _log_prior(votes: ChangedVotes, shifts: Sequence[Shift]) -> Floats:
    """Of each combination of shift, group, share of careless annotators and other taste."""
    n_groups = len(votes.categories) * len(TURNED)
    shift = np.log([one.prior for one in shifts])
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
    return np.asarray(shift[:, None, None, None] + group[:, None, None] + careless[:, None] + other)

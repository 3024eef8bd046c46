"""Draws worlds in which one or two causes change the error rate, with the rise that each adds."""

from collections.abc import Sequence
from typing import NamedTuple, get_args

import numpy as np

from rlhf_pipeline.core.records import CauseName
from rlhf_pipeline.simulation.vote_worlds import Change, VoteWorld

NAMES: tuple[CauseName, ...] = get_args(CauseName)
VOTES_AFTER = 1500
HARDER = 0.2  # errors in the hard category, above those in others


class CauseWorld(NamedTuple):
    """A world that changes at vote `at`, and by how much each cause raises the error rate."""

    world: VoteWorld
    at: int
    rises: dict[CauseName, float]

    @property
    def largest(self) -> CauseName:
        return max(self.rises, key=lambda name: self.rises[name])


def draw_cause_world(
    causes: Sequence[CauseName], seed: int, *, votes_per_comparison: int = 1
) -> CauseWorld:
    """A world in which `causes` happen at one vote; sizes and vote are drawn from ranges."""
    rng = np.random.default_rng([seed, *(NAMES.index(cause) for cause in causes)])
    at = int(rng.integers(800, 2000))
    base, category = rng.uniform(0.15, 0.3), rng.uniform(0.1, 0.3)
    sizes: dict[CauseName, float] = {
        "taste": rng.uniform(0.08, 0.25),
        "category": 1.0,
        "newcomers": rng.uniform(0.3, 0.5),
        "carelessness": rng.uniform(0.2, 0.4),
        "mix": rng.uniform(0.4, 0.7),
        "nothing": 0.0,
        "calibration": rng.uniform(1.8, 3.0),
    }
    # Careless annotators have no taste. Newcomers' taste is the opposite of everybody's, also where
    # that has changed.
    new = sizes["newcomers"] * ("newcomers" in causes)
    careless = (1 - new) * sizes["carelessness"] * ("carelessness" in causes)
    hard = sizes["mix"] if "mix" in causes else 0.0
    harder = max(0.0, hard - 0.05) * HARDER
    remaining = 1 - new - careless
    rises: dict[CauseName, float] = {
        "taste": sizes["taste"] * remaining,
        "category": category * (1 - hard) * (1 - 2 * base) * remaining,
        "newcomers": new
        * (1 - category * ("category" in causes))
        * (1 - 2 * (base + harder) - sizes["taste"] * ("taste" in causes)),
        "carelessness": careless * (0.5 - base - harder),
        "mix": harder,
        "calibration": 0.0,
    }
    is_fast, one_sided = bool(rng.random() < 0.5), rng.uniform(0.5, 0.95)
    world = VoteWorld(
        n_votes=at + VOTES_AFTER,
        error_rate=base,
        votes_per_comparison=votes_per_comparison,
        n_annotators=int(rng.integers(12, 40)),
        first_category_share=category,
        changes=tuple(
            Change(cause=c, at=at, size=sizes[c], is_fast=is_fast, one_sided=one_sided)
            for c in causes
        ),
    )
    return CauseWorld(world, at, {cause: rises[cause] for cause in causes})

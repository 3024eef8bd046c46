"""Worlds with one change at a known vote: a fire soon after it is right."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np

from rlhf_pipeline.laboratory.base import (
    KnownRates,
    LabBar,
    LabClaim,
    Observation,
    measure_share,
)
from rlhf_pipeline.laboratory.known_rates import find_peak
from rlhf_pipeline.laboratory.steady import describe_world
from rlhf_pipeline.laboratory.trigger_runs import Fire, find_fires
from rlhf_pipeline.records import Interval
from rlhf_pipeline.simulation.vote_worlds import Change, VoteWorld, draw_votes

CHANGES = "Something changes"
BASE_RATE = 0.25
EARLIEST, LATEST = 2000, 3000  # vote of the change
SHARE_OF_FIRST_VOTES = 0.9  # the rest repeats a comparison


@dataclass(frozen=True)
class ChangeScenario:
    """Share of worlds in which the trigger fires within `within` votes of the change.

    `change` makes the change at the drawn vote; `reads` names the only category that the CUSUM
    beside it reads.
    """

    name: str
    title: str
    change: Callable[[int], Change]
    within: int
    least_share: float
    known_rates: KnownRates
    reads: str | None = None
    group: str = CHANGES

    @property
    def unit(self) -> str:
        return f"fires within {self.within:,} votes"

    @property
    def bar(self) -> LabBar:
        return LabBar(limit=self.least_share, is_upper=False)

    def draw_world(self, seed: int) -> VoteWorld:
        at = int(np.random.default_rng([seed, 1]).integers(EARLIEST, LATEST))
        return VoteWorld(n_votes=at + self.within, error_rate=BASE_RATE, changes=(self.change(at),))

    def observe(self, seed: int) -> Observation:
        world = self.draw_world(seed)
        at = world.changes[0].at
        votes = draw_votes(world, seed)
        fires = find_fires(votes, until=at)
        read = votes if self.reads is None else votes[votes["category"] == self.reads]
        return Observation(
            world=describe_world(world),
            claims=claim_changes(fires, at),
            n_counts=int(any(fire.seq > at for fire in fires)),
            peak=find_peak(read, self.known_rates, at, at + self.within),
        )

    def measure(self, observations: Sequence[Observation]) -> Interval:
        return measure_share(observations)


def claim_changes(fires: Sequence[Fire], at: int) -> tuple[LabClaim, ...]:
    """Each fire beside the change after vote `at`, or that none came."""
    truth = f"after vote {at:,}"
    claims = [
        LabClaim(
            subject="change",
            truth=truth,
            claim=f"fires at vote {fire.seq:,}, dated {fire.change_seq or fire.seq:,}",
            is_right=fire.seq > at,
        )
        for fire in fires
    ]
    if not any(claim.is_right for claim in claims):
        claims.append(LabClaim(subject="change", truth=truth, claim="none", is_right=False))
    return tuple(claims)

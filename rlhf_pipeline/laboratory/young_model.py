"""A new model is worse on its first votes than on the reference it was registered with."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from rlhf_pipeline.drift.stream import Level
from rlhf_pipeline.laboratory.base import KnownRates, LabBar, Observation, measure_share
from rlhf_pipeline.laboratory.changes import (
    BASE_RATE,
    CHANGES,
    SHARE_OF_FIRST_VOTES,
    claim_changes,
)
from rlhf_pipeline.laboratory.known_rates import find_peak
from rlhf_pipeline.laboratory.steady import describe_world
from rlhf_pipeline.laboratory.trigger_runs import find_fires
from rlhf_pipeline.records import Interval
from rlhf_pipeline.simulation.vote_worlds import VoteWorld, draw_votes

RISE, WITHIN = 0.15, 1000
LEAST_REFERENCE, MOST_REFERENCE = 200, 400  # predictions


@dataclass(frozen=True)
class YoungModelScenario:
    """Share of worlds in which the trigger fires within WITHIN votes of the model's first."""

    name: str = "young_model"
    title: str = "error rate is .15 above the reference from a model's first vote"
    group: str = CHANGES
    unit: str = f"fires within {WITHIN:,} votes"

    @property
    def bar(self) -> LabBar:
        return LabBar(limit=0.9, is_upper=False)

    @property
    def known_rates(self) -> KnownRates:
        return KnownRates(before=BASE_RATE, after=BASE_RATE + RISE, share_read=SHARE_OF_FIRST_VOTES)

    def observe(self, seed: int) -> Observation:
        rng = np.random.default_rng([seed, 1])
        n = int(rng.integers(LEAST_REFERENCE, MOST_REFERENCE + 1))
        reference = Level(n, float(rng.binomial(n, BASE_RATE)) / n)
        world = VoteWorld(n_votes=WITHIN, error_rate=BASE_RATE + RISE)
        votes = draw_votes(world, seed)
        fires = find_fires(votes, reference=reference, until=0)
        return Observation(
            world=describe_world(world)
            | {"reference": f"{reference.error_rate:.3f} of {n} predictions"},
            claims=claim_changes(fires, 0),
            n_counts=int(bool(fires)),
            peak=find_peak(votes, self.known_rates, 0, WITHIN),
        )

    def measure(self, observations: Sequence[Observation]) -> Interval:
        return measure_share(observations)


YOUNG_MODEL = YoungModelScenario()

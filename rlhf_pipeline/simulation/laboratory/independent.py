"""One vote a comparison and a steady error rate: what a fire costs at least."""

import numpy as np

from rlhf_pipeline.simulation.laboratory.steady import (
    N_VOTES,
    SteadyScenario,
    draw_error_rate,
    draw_votes_per_day,
)
from rlhf_pipeline.simulation.vote_worlds import VoteWorld


def draw_world(rng: np.random.Generator) -> VoteWorld:
    return VoteWorld(
        n_votes=N_VOTES, error_rate=draw_error_rate(rng), votes_per_day=draw_votes_per_day(rng)
    )


INDEPENDENT = SteadyScenario("independent", "one vote a comparison", draw_world)

"""Sessions in which a few annotators vote at random in a third of their usual time."""

import numpy as np

from rlhf_pipeline.simulation.laboratory.independent import draw_world
from rlhf_pipeline.simulation.laboratory.steady import SteadyScenario
from rlhf_pipeline.simulation.vote_worlds import VoteWorld

N_BURSTS, VOTES_PER_BURST, ANNOTATORS_PER_BURST = 10, 150, 5


def draw_bursts(rng: np.random.Generator) -> VoteWorld:
    return draw_world(rng).model_copy(
        update={
            "n_bursts": N_BURSTS,
            "votes_per_burst": VOTES_PER_BURST,
            "annotators_per_burst": ANNOTATORS_PER_BURST,
        }
    )


CARELESS_BURSTS = SteadyScenario(
    "careless_bursts",
    "ten bursts of 150 careless votes by 5 of 30 annotators",
    draw_bursts,
    limit=0.08,
)

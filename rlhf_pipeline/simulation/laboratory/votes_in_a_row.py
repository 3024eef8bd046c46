"""Several votes of one comparison, one after the other: they err together."""

from functools import partial

import numpy as np

from rlhf_pipeline.simulation.laboratory.independent import draw_world
from rlhf_pipeline.simulation.laboratory.steady import SteadyScenario
from rlhf_pipeline.simulation.vote_worlds import VoteWorld

LIKENESS = 0.5  # of the votes on one comparison


def draw_overlapping(rng: np.random.Generator, votes_per_comparison: int) -> VoteWorld:
    return draw_world(rng).model_copy(
        update={"votes_per_comparison": votes_per_comparison, "likeness": LIKENESS}
    )


THREE_IN_A_ROW = SteadyScenario(
    "three_in_a_row",
    "three votes of a comparison one after the other",
    partial(draw_overlapping, votes_per_comparison=3),
)
FIVE_IN_A_ROW = SteadyScenario(
    "five_in_a_row",
    "five votes of a comparison one after the other",
    partial(draw_overlapping, votes_per_comparison=5),
)

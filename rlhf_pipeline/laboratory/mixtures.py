"""Two of the steady worlds' dependences at once."""

import numpy as np

from rlhf_pipeline.laboratory.steady import SteadyScenario
from rlhf_pipeline.laboratory.votes_in_a_row import LIKENESS, draw_overlapping
from rlhf_pipeline.laboratory.weekly_rhythm import draw_rhythmic
from rlhf_pipeline.simulation.vote_worlds import VoteWorld


def draw_rhythm_of_three(rng: np.random.Generator) -> VoteWorld:
    return draw_rhythmic(rng).model_copy(update={"votes_per_comparison": 3, "likeness": LIKENESS})


def draw_rhythm_and_bursts(rng: np.random.Generator) -> VoteWorld:
    return draw_rhythmic(rng).model_copy(update={"n_bursts": int(rng.integers(4, 7))})


def draw_bursts_of_five(rng: np.random.Generator) -> VoteWorld:
    return draw_overlapping(rng, 5).model_copy(update={"n_bursts": int(rng.integers(6, 11))})


RHYTHM_OF_THREE = SteadyScenario(
    "rhythm_of_three",
    "mixture: three votes in a row and a weekly rhythm",
    draw_rhythm_of_three,
    learns_rhythm=True,
)
RHYTHM_AND_BURSTS = SteadyScenario(
    "rhythm_and_bursts",
    "mixture: a weekly rhythm and 4 to 6 careless bursts",
    draw_rhythm_and_bursts,
    learns_rhythm=True,
)
BURSTS_OF_FIVE = SteadyScenario(
    "bursts_of_five",
    "mixture: five votes in a row and 6 to 10 careless bursts",
    draw_bursts_of_five,
)

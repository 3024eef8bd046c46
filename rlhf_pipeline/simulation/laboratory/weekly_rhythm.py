"""A weekly rhythm of care: more errors at weekends, week after week."""

import numpy as np

from rlhf_pipeline.simulation.laboratory.steady import (
    N_WEEKS,
    SteadyScenario,
    draw_error_rate,
    draw_votes_per_day,
)
from rlhf_pipeline.simulation.vote_worlds import VoteWorld

HIGHEST_RISE = 0.10  # of the error rate at weekends


def draw_rhythmic(rng: np.random.Generator) -> VoteWorld:
    votes_per_day = draw_votes_per_day(rng)
    return VoteWorld(
        n_votes=7 * N_WEEKS * votes_per_day,
        error_rate=draw_error_rate(rng),
        votes_per_day=votes_per_day,
        weekend_rise=round(float(rng.uniform(0, HIGHEST_RISE)), 3),
    )


WEEKLY_RHYTHM = SteadyScenario(
    "weekly_rhythm",
    "errors rise by up to .10 at weekends, 8 weeks",
    draw_rhythmic,
    limit=0.08,
)

"""Everybody's taste changes: the model's error rate rises from one vote to the next.

A young model errs more from its first vote on than on the reference that it was registered with.
"""

from functools import partial

from rlhf_pipeline.simulation.laboratory.changes import ChangeScenario
from rlhf_pipeline.simulation.vote_worlds import Change


def raise_rate(at: int, size: float) -> Change:
    return Change(cause="taste", at=at, size=size)


LARGE_RISE = ChangeScenario(
    "rise_of_10",
    "error rate rises by .10",
    partial(raise_rate, size=0.10),
    within=800,
    least_share=0.85,
)
SMALL_RISE = ChangeScenario(
    "rise_of_5",
    "error rate rises by .05",
    partial(raise_rate, size=0.05),
    within=2500,
    least_share=0.80,
)
YOUNG_MODEL = ChangeScenario(
    "young_model",
    "error rate is .15 above the reference from a model's first vote",
    partial(raise_rate, size=0.15),
    within=1000,
    least_share=0.90,
    is_young=True,
)

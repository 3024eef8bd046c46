"""The taste in one category turns round: a fifth of the votes, all others stay as they were."""

from rlhf_pipeline.simulation.laboratory.changes import ChangeScenario
from rlhf_pipeline.simulation.vote_worlds import Change


def turn_category(at: int) -> Change:
    return Change(cause="category", at=at, size=1)


CATEGORY_TURN = ChangeScenario(
    "category_turn",
    "taste in one category of 20 % turns round",
    turn_category,
    within=500,
    least_share=0.85,
)

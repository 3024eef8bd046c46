"""The taste in one category turns round: a fifth of the votes, all others stay as they were."""

from rlhf_pipeline.laboratory.base import KnownRates
from rlhf_pipeline.laboratory.changes import BASE_RATE, SHARE_OF_FIRST_VOTES, ChangeScenario
from rlhf_pipeline.simulation.vote_worlds import Change, VoteWorld

CATEGORY = "category 0"


def turn_category(at: int) -> Change:
    return Change(cause="category", at=at, size=1)


CATEGORY_TURN = ChangeScenario(
    "category_turn",
    "taste in one category of 20 % turns round",
    turn_category,
    within=500,
    least_share=0.85,
    known_rates=KnownRates(
        before=BASE_RATE,
        after=1 - BASE_RATE,
        share_read=SHARE_OF_FIRST_VOTES * VoteWorld().first_category_share,
    ),
    reads=CATEGORY,
)

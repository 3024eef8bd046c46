"""Worlds with one change at a known vote: a retraining soon after it is right."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from rlhf_pipeline.core.records import Interval
from rlhf_pipeline.simulation.laboratory.base import (
    LabBar,
    Observation,
    measure_share,
)
from rlhf_pipeline.simulation.laboratory.trigger_runs import Response, find_responses
from rlhf_pipeline.simulation.vote_worlds import Change, VoteWorld, draw_votes

CHANGES = "Something changes"
BASE_RATE = 0.25
EARLIEST, LATEST = 2000, 3000  # vote of the change


@dataclass(frozen=True)
class ChangeScenario:
    """Share of worlds in which the trigger retrains within `within` votes of the change.

    `change` comes at the drawn vote. With `is_young`, it comes with the model's first
    vote.
    """

    name: str
    title: str
    change: Change
    within: int
    least_share: float
    is_young: bool = False
    group: str = CHANGES

    @property
    def unit(self) -> str:
        return f"retrains within {self.within:,} votes"

    @property
    def bar(self) -> LabBar:
        return LabBar(limit=self.least_share, is_upper=False)

    def draw_world(self, seed: int) -> VoteWorld:
        drawn = int(np.random.default_rng([seed, 1]).integers(EARLIEST, LATEST))
        at = 0 if self.is_young else drawn
        change = self.change.model_copy(update={"at": at})
        return VoteWorld(n_votes=at + self.within, error_rate=BASE_RATE, changes=(change,))

    def observe(self, seed: int) -> Observation:
        world = self.draw_world(seed)
        at = world.changes[0].at
        responses = find_responses(world, draw_votes(world, seed), seed, until=at)
        retraining = find_retraining(responses, at)
        return Observation(
            n_counts=int(retraining is not None),
            is_confirmed=any(
                response.confirmed_seq > at and response.reports_rise for response in responses
            ),
            n_waited=retraining and retraining.seq - retraining.confirmed_seq,
        )

    def measure(self, observations: Sequence[Observation]) -> Interval:
        return measure_share(observations)


def find_retraining(responses: Sequence[Response], at: int) -> Response | None:
    """The first retraining that answers a change confirmed after vote `at`: one confirmed before it
    is a false alarm, however late it is answered.
    """
    return next(
        (response for response in responses if response.confirmed_seq > at and response.retrains),
        None,
    )


CHANGED = (
    ChangeScenario(
        "rise_of_10",
        "error rate rises by .10",
        Change(cause="taste", at=0, size=0.10),
        within=800,
        least_share=0.85,
    ),
    ChangeScenario(
        "rise_of_5",
        "error rate rises by .05",
        Change(cause="taste", at=0, size=0.05),
        within=2500,
        least_share=0.80,
    ),
    ChangeScenario(
        "category_turn",
        "taste in one category of 20 % turns round",
        Change(cause="category", at=0, size=1),
        within=500,
        least_share=0.85,
    ),
    ChangeScenario(
        "young_model",
        "error rate is .15 above the reference from a model's first vote",
        Change(cause="taste", at=0, size=0.15),
        within=1000,
        least_share=0.90,
        is_young=True,
    ),
)

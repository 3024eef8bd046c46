"""Streams of which every second one changes: how often the trigger is right about a stream."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from rlhf_pipeline.laboratory.base import KnownRates, LabBar, LabClaim, Observation, measure_share
from rlhf_pipeline.laboratory.changes import BASE_RATE, CHANGES, find_retraining
from rlhf_pipeline.laboratory.steady import describe_world
from rlhf_pipeline.laboratory.trigger_runs import describe_response, find_responses
from rlhf_pipeline.records import Interval
from rlhf_pipeline.simulation.vote_worlds import Change, VoteWorld, draw_votes

N_VOTES, CHANGE_AT = 2500, 1500
LEAST_RISE, HIGHEST_RISE = 0.10, 0.25


@dataclass(frozen=True)
class ChangedOrSteady:
    """Share of streams judged right: a changed one if its first response is a retraining after the
    change, a steady one if there is none. Odd seeds change.
    """

    name: str = "changed_or_steady"
    title: str = f"half of the streams change at vote {CHANGE_AT:,} by .10 to .25"
    group: str = CHANGES
    unit: str = "accuracy over 2,500 votes"
    known_rates: ClassVar[KnownRates | None] = None

    @property
    def bar(self) -> LabBar:
        return LabBar(limit=0.93, is_upper=False)

    def draw_world(self, seed: int) -> VoteWorld:
        rise = round(float(np.random.default_rng([seed, 1]).uniform(LEAST_RISE, HIGHEST_RISE)), 3)
        changes = (Change(cause="taste", at=CHANGE_AT, size=rise),) if seed % 2 else ()
        return VoteWorld(n_votes=N_VOTES, error_rate=BASE_RATE, changes=changes)

    def observe(self, seed: int) -> Observation:
        world = self.draw_world(seed)
        responses = find_responses(world, draw_votes(world, seed), seed, until=0)
        decided = [one for one in responses if one.decision]
        at = world.changes[0].at if world.changes else None
        truth = "none" if at is None else f"after vote {at:,}"
        is_right = not decided if at is None else find_retraining(decided[:1], at) is not None
        claim = describe_response(responses[0]) if responses else "none"
        return Observation(
            world=describe_world(world),
            claims=(LabClaim(subject="change", truth=truth, claim=claim, is_right=is_right),),
            n_counts=int(is_right),
        )

    def measure(self, observations: Sequence[Observation]) -> Interval:
        return measure_share(observations)


CHANGED_OR_STEADY = ChangedOrSteady()

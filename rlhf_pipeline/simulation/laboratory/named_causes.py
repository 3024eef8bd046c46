"""One or two causes change the error rate: whether the trigger names the larger, and its answer."""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import combinations
from typing import NamedTuple, get_args

import numpy as np

from rlhf_pipeline.core.records import CauseName, Interval
from rlhf_pipeline.simulation.laboratory.base import LabBar, Observation, measure_share
from rlhf_pipeline.simulation.laboratory.trigger_runs import find_responses
from rlhf_pipeline.simulation.vote_worlds import Change, VoteWorld, draw_votes

NAMES: tuple[CauseName, ...] = get_args(CauseName)
VOTES_AFTER = 1500
HARDER = 0.2  # errors in the hard category, above those in others


class CauseWorld(NamedTuple):
    """A world that changes at vote `at`, and by how much each cause raises the error rate."""

    world: VoteWorld
    at: int
    rises: dict[CauseName, float]

    @property
    def largest(self) -> CauseName:
        return max(self.rises, key=lambda name: self.rises[name])


def draw_cause_world(
    causes: Sequence[CauseName], seed: int, *, votes_per_comparison: int = 1
) -> CauseWorld:
    """A world in which `causes` happen at one vote; sizes and vote are drawn from ranges."""
    rng = np.random.default_rng([seed, *(NAMES.index(cause) for cause in causes)])
    at = int(rng.integers(800, 2000))
    base, category = rng.uniform(0.15, 0.3), rng.uniform(0.1, 0.3)
    sizes: dict[CauseName, float] = {
        "taste": rng.uniform(0.08, 0.25),
        "category": 1.0,
        "newcomers": rng.uniform(0.3, 0.5),
        "carelessness": rng.uniform(0.2, 0.4),
        "mix": rng.uniform(0.4, 0.7),
        "nothing": 0.0,
        "calibration": rng.uniform(1.8, 3.0),
    }
    # Careless annotators have no taste. Newcomers' taste is the opposite of everybody's, also where
    # that has changed.
    new = sizes["newcomers"] * ("newcomers" in causes)
    careless = (1 - new) * sizes["carelessness"] * ("carelessness" in causes)
    hard = sizes["mix"] if "mix" in causes else 0.0
    harder = max(0.0, hard - 0.05) * HARDER
    remaining = 1 - new - careless
    rises: dict[CauseName, float] = {
        "taste": sizes["taste"] * remaining,
        "category": category * (1 - hard) * (1 - 2 * base) * remaining,
        "newcomers": new
        * (1 - category * ("category" in causes))
        * (1 - 2 * (base + harder) - sizes["taste"] * ("taste" in causes)),
        "carelessness": careless * (0.5 - base - harder),
        "mix": harder,
        "calibration": 0.0,
    }
    is_fast, one_sided = bool(rng.random() < 0.5), rng.uniform(0.5, 0.95)
    world = VoteWorld(
        n_votes=at + VOTES_AFTER,
        error_rate=base,
        votes_per_comparison=votes_per_comparison,
        n_annotators=int(rng.integers(12, 40)),
        first_category_share=category,
        changes=tuple(
            Change(cause=c, at=at, size=sizes[c], is_fast=is_fast, one_sided=one_sided)
            for c in causes
        ),
    )
    return CauseWorld(world, at, {cause: rises[cause] for cause in causes})


CAUSES = "Causes of noticed changes"
# Where the model states errors rightly, another mix is no change; neither is chance.
NAMED = [name for name in NAMES if name not in ("mix", "nothing")]
PAIRS = tuple(combinations([name for name in NAMED if name != "calibration"], 2))
TITLES: dict[CauseName, str] = {
    "taste": "the taste of everybody changes: .08 to .25 more errors",
    "category": "the taste in one category of 10 to 30 % turns round",
    "newcomers": "30 to 50 % of the votes come from newcomers of the opposite taste",
    "carelessness": "20 to 40 % of the annotators vote at random, in half of the worlds hastily",
    "calibration": "stated log odds are 1.8 to 3 times as large, errors are not",
}


@dataclass(frozen=True)
class CauseScenario:
    """A change whose causes are `choices[seed modulo their number]`: the share of answered changes
    whose largest cause is on top at the first response.
    """

    name: str
    title: str
    least_share: float
    choices: tuple[tuple[CauseName, ...], ...]
    group: str = CAUSES
    unit: str = "largest cause on top"

    @property
    def bar(self) -> LabBar:
        return LabBar(limit=self.least_share, is_upper=False)

    def draw_world(self, seed: int) -> VoteWorld:
        return draw_cause_world(self._causes(seed), seed).world

    def observe(self, seed: int) -> Observation:
        drawn = draw_cause_world(self._causes(seed), seed)
        votes = draw_votes(drawn.world, seed)
        responses = find_responses(drawn.world, votes, seed, until=drawn.at)
        # that calibration tests fail too is no answer to another cause
        after = [
            response
            for response in responses
            if response.seq > drawn.at
            and response.decision
            and (response.reports_rise or drawn.largest == "calibration")
        ]
        first = after[0] if after else None
        is_right = first is not None and first.cause == drawn.largest
        return Observation(
            n_counted=int(first is not None),
            n_counts=int(is_right),
            is_confirmed=any(response.confirmed_seq > drawn.at for response in responses),
            n_waited=first and first.seq - first.confirmed_seq,
            retrains=any(response.retrains for response in after),
        )

    def measure(self, observations: Sequence[Observation]) -> Interval:
        return measure_share(observations)

    def _causes(self, seed: int) -> tuple[CauseName, ...]:
        return self.choices[seed % len(self.choices)]


SINGLE_CAUSES = tuple(
    CauseScenario(f"cause_{name}", TITLES[name], 0.85, ((name,),)) for name in NAMED
)
TWO_CAUSES = CauseScenario("two_causes", "two of four causes at one vote", 0.8, PAIRS)

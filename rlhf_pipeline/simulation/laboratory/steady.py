"""Worlds in which nothing changes: every response of the trigger is false."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial

import numpy as np

from rlhf_pipeline.core.records import Interval
from rlhf_pipeline.simulation.laboratory.base import LabBar, Observation
from rlhf_pipeline.simulation.laboratory.trigger_runs import find_responses
from rlhf_pipeline.simulation.vote_worlds import VoteWorld, draw_votes

NOTHING_HAPPENS = "Nothing happens"
N_VOTES = 5000
N_WEEKS = 8  # of worlds with a rhythm
LEAST_RATE, HIGHEST_RATE = 0.15, 0.35
LEAST_DAILY, MOST_DAILY = 60, 150  # votes
HIGHEST_RISE = 0.10  # of the error rate at weekends
LIKENESS = 0.5  # of the votes on one comparison


@dataclass(frozen=True)
class SteadyScenario:
    """Retrainings per 1,000 votes of a world that `draw` makes with a random generator."""

    name: str
    title: str
    draw: Callable[[np.random.Generator], VoteWorld]
    limit: float = 0.03
    group: str = NOTHING_HAPPENS
    unit: str = "false retrainings per 1,000 votes"

    @property
    def bar(self) -> LabBar:
        return LabBar(limit=self.limit, is_upper=True)

    def draw_world(self, seed: int) -> VoteWorld:
        return self.draw(np.random.default_rng([seed, 1]))

    def observe(self, seed: int) -> Observation:
        world = self.draw_world(seed)
        responses = find_responses(world, draw_votes(world, seed), seed)
        counted = [response for response in responses if response.decision]
        n_retrainings = sum(response.retrains for response in counted)
        return Observation(
            n_counted=world.n_votes,
            n_counts=n_retrainings,
            n_others=len(counted) - n_retrainings,
        )

    def measure(self, observations: Sequence[Observation]) -> Interval:
        return measure_rate(observations)


def measure_rate(observations: Sequence[Observation]) -> Interval:
    """What counts per 1,000 votes, with the exact interval of a Poisson count (Garwood 1936)."""
    from scipy.stats import chi2

    n = sum(observation.n_counts for observation in observations)
    thousands = sum(observation.n_counted for observation in observations) / 1000
    low = float(chi2.ppf(0.025, 2 * n)) / 2 if n else 0.0
    high = float(chi2.ppf(0.975, 2 * n + 2)) / 2
    return Interval(
        value=n / thousands, low=low / thousands, high=high / thousands, n=len(observations)
    )


def measure_others(observations: Sequence[Observation]) -> Interval:
    """Responses per 1,000 votes that retrain nothing."""
    return measure_rate(
        [
            observation.model_copy(update={"n_counts": observation.n_others})
            for observation in observations
        ]
    )


def draw_independent(rng: np.random.Generator) -> VoteWorld:
    """One vote a comparison and a steady error rate: what a fire costs at least."""
    error_rate = round(float(rng.uniform(LEAST_RATE, HIGHEST_RATE)), 3)
    return VoteWorld(n_votes=N_VOTES, error_rate=error_rate, votes_per_day=draw_votes_per_day(rng))


def draw_overlapping(rng: np.random.Generator, votes_per_comparison: int) -> VoteWorld:
    """Several votes of one comparison, one after the other: they err together."""
    return draw_independent(rng).model_copy(
        update={"votes_per_comparison": votes_per_comparison, "likeness": LIKENESS}
    )


def draw_rhythmic(rng: np.random.Generator) -> VoteWorld:
    """A weekly rhythm of care: more errors at weekends, week after week."""
    votes_per_day = draw_votes_per_day(rng)
    return VoteWorld(
        n_votes=7 * N_WEEKS * votes_per_day,
        error_rate=round(float(rng.uniform(LEAST_RATE, HIGHEST_RATE)), 3),
        votes_per_day=votes_per_day,
        weekend_rise=round(float(rng.uniform(0, HIGHEST_RISE)), 3),
    )


def draw_bursts(rng: np.random.Generator) -> VoteWorld:
    """Sessions in which a few annotators vote at random in a third of their usual time."""
    bursts = {"n_bursts": 10, "votes_per_burst": 150, "annotators_per_burst": 5}
    return draw_independent(rng).model_copy(update=bursts)


def draw_votes_per_day(rng: np.random.Generator) -> int:
    return int(rng.integers(LEAST_DAILY, MOST_DAILY + 1))


STEADY = (
    SteadyScenario("independent", "one vote a comparison", draw_independent),
    SteadyScenario(
        "three_in_a_row",
        "three votes of a comparison one after the other",
        partial(draw_overlapping, votes_per_comparison=3),
    ),
    SteadyScenario(
        "five_in_a_row",
        "five votes of a comparison one after the other",
        partial(draw_overlapping, votes_per_comparison=5),
    ),
    SteadyScenario(
        "weekly_rhythm",
        "errors rise by up to .10 at weekends, 8 weeks",
        draw_rhythmic,
        limit=0.08,
    ),
    SteadyScenario(
        "careless_bursts",
        "ten bursts of 150 careless votes by 5 of 30 annotators",
        draw_bursts,
        limit=0.08,
    ),
)

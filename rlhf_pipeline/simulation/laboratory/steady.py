"""Worlds in which nothing changes: every response of the trigger is false."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np

from rlhf_pipeline.core.records import Interval
from rlhf_pipeline.simulation.laboratory.base import LabBar, LabClaim, Observation
from rlhf_pipeline.simulation.laboratory.trigger_runs import describe_response, find_responses
from rlhf_pipeline.simulation.vote_worlds import VoteWorld, draw_votes

NOTHING_HAPPENS = "Nothing happens"
N_VOTES = 5000
N_WEEKS = 8  # of worlds with a rhythm
LEAST_RATE, HIGHEST_RATE = 0.15, 0.35
LEAST_DAILY, MOST_DAILY = 60, 150  # votes


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
        claims = [
            LabClaim(
                subject="change",
                truth="none",
                claim=describe_response(response),
                is_right=False,
            )
            for response in responses
        ] or [LabClaim(subject="change", truth="none", claim="none", is_right=True)]
        counted = [one for one in responses if one.decision]
        n_retrainings = sum(response.retrains for response in counted)
        return Observation(
            world=describe_world(world),
            claims=tuple(claims),
            n_counted=world.n_votes,
            n_counts=n_retrainings,
            n_others=len(counted) - n_retrainings,
        )

    def measure(self, observations: Sequence[Observation]) -> Interval:
        return measure_rate(observations)


def measure_rate(observations: Sequence[Observation]) -> Interval:
    """What counts per 1,000 votes, with the exact interval of a Poisson count (Garwood 1936)."""
    from scipy.stats import chi2

    n = sum(one.n_counts for one in observations)
    thousands = sum(one.n_counted for one in observations) / 1000
    low = float(chi2.ppf(0.025, 2 * n)) / 2 if n else 0.0
    high = float(chi2.ppf(0.975, 2 * n + 2)) / 2
    return Interval(
        value=n / thousands, low=low / thousands, high=high / thousands, n=len(observations)
    )


def measure_others(observations: Sequence[Observation]) -> Interval:
    """Responses per 1,000 votes that retrain nothing."""
    return measure_rate([one.model_copy(update={"n_counts": one.n_others}) for one in observations])


def draw_error_rate(rng: np.random.Generator) -> float:
    return round(float(rng.uniform(LEAST_RATE, HIGHEST_RATE)), 3)


def draw_votes_per_day(rng: np.random.Generator) -> int:
    return int(rng.integers(LEAST_DAILY, MOST_DAILY + 1))


def describe_world(world: VoteWorld) -> dict[str, str]:
    """What differs from the defaults of a world."""
    drawn = world.model_dump(exclude_defaults=True, exclude={"changes"})
    return (
        {"error rate": f"{world.error_rate:g}", "votes": f"{world.n_votes:,}"}
        | {
            name.replace("_", " "): f"{value:g}"
            for name, value in drawn.items()
            if name not in ("error_rate", "n_votes")
        }
        | {f"change of {one.cause}": f"{one.size:g}" for one in world.changes}
    )

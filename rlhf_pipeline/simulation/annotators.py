"""Simulates annotators: noisy, biased to one side, with fatigue.

An annotator chooses by u_a - u_b + position bias + logistic noise (Bradley and Terry 1952, with a
tie band after Rao and Kupper 1967); the noise grows with the votes already cast that day.
"""

from collections.abc import Mapping, Sequence
from datetime import UTC, datetime, timedelta
from functools import cached_property

import numpy as np
import pandas as pd
from pydantic import Field

from rlhf_pipeline.core.errors import ConfigurationError
from rlhf_pipeline.core.records import (
    AnnotatorKind,
    Choice,
    NewVote,
    Record,
    content_hash,
    content_id,
)
from rlhf_pipeline.simulation.utilities import Taste, side_utilities

SECONDS_PER_VOTE = 12.0


class SimulatedAnnotator(Record):
    """One annotator; utilities and noise use the same unit."""

    annotator_id: str
    noise: float = Field(description="scale of the logistic noise of a rested annotator", gt=0)
    position_bias: float = Field(
        0.0, description="utility added to side a, which they see on the left"
    )
    fatigue: float = Field(0.0, description="growth of the noise per 100 votes of the day", ge=0)
    strength_scale: float = Field(1.0, description="felt difference per step of strength", gt=0)
    tie_width: float = Field(0.2, description="felt differences below it are ties", ge=0)
    both_bad_below: float = Field(-2.5, description="a tie of two utilities below it is both_bad")
    skip_rate: float = Field(0.0, description="chance not to judge", ge=0, le=1)

    def noise_after(self, n_earlier: float) -> float:
        """Scale of the noise after `n_earlier` votes of the day."""
        return self.noise * (1 + self.fatigue * n_earlier / 100)

    def vote(
        self, utility_a: float, utility_b: float, *, n_earlier: int, rng: np.random.Generator
    ) -> tuple[Choice, int | None]:
        """Draw a choice, and a strength from 1 to 4 if a side was chosen."""
        if rng.random() < self.skip_rate:
            return Choice.SKIP, None
        felt = (
            utility_a
            - utility_b
            + self.position_bias
            + rng.logistic(scale=self.noise_after(n_earlier))
        )
        if abs(felt) < self.tie_width:
            return (
                Choice.BOTH_BAD if max(utility_a, utility_b) < self.both_bad_below else Choice.TIE
            ), None
        return (Choice.A if felt > 0 else Choice.B), min(
            4, 1 + int(abs(felt) / self.strength_scale)
        )


class AnnotatorPool(Record):
    """Annotators drawn around common values: `spread` is the relative standard deviation between
    annotators.
    """

    n: int = Field(8, description="annotators", ge=1)
    seed: int = Field(0, ge=0)
    noise: float = Field(
        0.65, description="mean scale of the logistic noise, in units of utility", gt=0
    )
    position_bias: float = Field(0.08, description="mean utility added to side a")
    fatigue: float = Field(
        0.15, description="mean growth of the noise per 100 votes of a day", ge=0
    )
    tie_width: float = Field(0.2, description="felt differences below it are ties", ge=0)
    skip_rate: float = Field(0.005, description="chance not to judge", ge=0, le=1)
    spread: float = Field(0.15, description="relative difference between annotators", ge=0, lt=0.5)

    @cached_property
    def annotators(self) -> tuple[SimulatedAnnotator, ...]:
        """The annotators; equal pools give equal annotators."""
        return tuple(self._draw(i) for i in range(self.n))

    def _draw(self, index: int) -> SimulatedAnnotator:
        rng = random_generator("annotator", self.seed, index)
        noise, bias, fatigue = (
            value * max(0.1, 1 + self.spread * rng.standard_normal())
            for value in (self.noise, self.position_bias, self.fatigue)
        )
        return SimulatedAnnotator(
            annotator_id=f"simulated-{content_id('annotator', self.seed, index)[:8]}",
            noise=noise,
            position_bias=bias,
            fatigue=fatigue,
            tie_width=self.tie_width,
            skip_rate=self.skip_rate,
        )


def simulate_votes(
    comparisons: pd.DataFrame,
    references: Mapping[str, str | None],
    taste: Taste,
    pool: AnnotatorPool,
    *,
    day: str,
    votes_per_comparison: int = 3,
    seed: int = 0,
    start: datetime,
) -> list[NewVote]:
    """Cast the votes of one day in time order; the same comparisons give the same votes in any row
    order.

    `votes_per_comparison` different annotators judge each comparison; a repeat goes to the
    annotators of its original. Votes are spaced from `start`, all within the UTC day. Raises
    ConfigurationError if `start` is not in the day or the pool is too small.
    """
    if votes_per_comparison > pool.n:
        raise ConfigurationError(
            f"{votes_per_comparison} votes per comparison need as many annotators; the pool has "
            f"{pool.n}. Raise n."
        )
    ordered = comparisons.sort_values(["position", "comparison_id"], kind="stable")
    utilities = np.column_stack(side_utilities(ordered, references, taste))
    moments = _vote_times(day, start, len(ordered) * votes_per_comparison)
    n_earlier: dict[str, int] = {}
    votes: list[NewVote] = []
    for comparison_id, original, (u_a, u_b) in zip(
        ordered["comparison_id"], ordered["repeat_of"], utilities, strict=True
    ):
        for annotator in _draw_annotators(
            comparison_id if pd.isna(original) else original, pool, votes_per_comparison, seed
        ):
            tired = n_earlier.get(annotator.annotator_id, 0)
            n_earlier[annotator.annotator_id] = tired + 1
            rng = random_generator("vote", seed, day, comparison_id, annotator.annotator_id)
            choice, strength = annotator.vote(float(u_a), float(u_b), n_earlier=tired, rng=rng)
            votes.append(
                NewVote(
                    comparison_id=comparison_id,
                    annotator_id=annotator.annotator_id,
                    annotator_kind=AnnotatorKind.SIMULATED,
                    choice=choice,
                    strength=strength,
                    duration_s=round(float(rng.lognormal(np.log(SECONDS_PER_VOTE), 0.5)), 1),
                    # the bias favours a, which is displayed on the left
                    voted_at=moments[len(votes)],
                    origin="simulation",
                    is_swapped=False,
                    idempotency_key=content_id(
                        "simulated vote", seed, day, comparison_id, annotator.annotator_id
                    ),
                )
            )
    return votes


def _draw_annotators(
    comparison_id: str, pool: AnnotatorPool, n: int, seed: int
) -> Sequence[SimulatedAnnotator]:
    drawn = random_generator("judges", seed, comparison_id).permutation(pool.n)[:n]
    return [pool.annotators[i] for i in drawn]


def _vote_times(day: str, start: datetime, n: int) -> list[datetime]:
    start = start.astimezone(UTC)
    if start.date().isoformat() != day:
        raise ConfigurationError(
            f"Votes of {day} cannot start at {start.isoformat()}. Give a moment of that UTC day."
        )
    midnight = start.replace(hour=0, minute=0, second=0, microsecond=0) + timedelta(days=1)
    step = min(timedelta(seconds=SECONDS_PER_VOTE), (midnight - start) / (n + 1))
    return [start + step * i for i in range(n)]


def random_generator(*parts: object) -> np.random.Generator:
    """A separate generator for the event that `parts` name: no draw depends on another or on their
    order.
    """
    return np.random.default_rng(int(content_hash(*parts)[:16], 16))

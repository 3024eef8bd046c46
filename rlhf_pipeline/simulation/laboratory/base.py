"""Defines the protocol of laboratory scenarios, and the records of what they show."""

from collections.abc import Sequence
from typing import Protocol

from pydantic import Field

from rlhf_pipeline.core.intervals import interval_of_share
from rlhf_pipeline.core.records import Interval, Record


class Observation(Record):
    """What one seed of a scenario showed."""

    n_counted: int = Field(1, ge=0, description="votes, or decisions, that the figure counts over")
    n_counts: int = Field(description="of those that count: false retrainings, or right decisions")
    n_others: int | None = Field(None, description="other false responses, which retrain nothing")
    is_confirmed: bool | None = Field(None, description="detectors confirm the change in time")
    n_waited: int | None = Field(None, description="votes from the confirmation to the decision")
    retrains: bool | None = Field(None, description="a retraining answers the change")


class LabBar(Record):
    """The figure that a scenario has to reach."""

    limit: float
    is_upper: bool = Field(description="the figure may not exceed the limit; else it must reach it")

    def __str__(self) -> str:
        return f"{'≤' if self.is_upper else '≥'} {self.limit:g}"

    def is_met(self, figure: float) -> bool:
        return figure <= self.limit if self.is_upper else figure >= self.limit


class LabScenario(Protocol):
    """A world, drawn from ranges by a seed, and what the library makes of it.

    `observe` is deterministic and needs no home. `measure` sums observations up in the unit of
    `bar`.
    """

    @property
    def name(self) -> str: ...
    @property
    def title(self) -> str: ...
    @property
    def group(self) -> str: ...
    @property
    def unit(self) -> str: ...
    @property
    def bar(self) -> LabBar: ...

    def observe(self, seed: int) -> Observation: ...

    def measure(self, observations: Sequence[Observation]) -> Interval: ...


def measure_share(observations: Sequence[Observation]) -> Interval:
    """The share of what was counted that counts."""
    return share_of(
        sum(observation.n_counts for observation in observations),
        sum(observation.n_counted for observation in observations),
    )


def share_of(n_right: int, n: int) -> Interval:
    """The share with Wilson's interval; from 0 to 1 where nothing was counted."""
    return interval_of_share(n_right / n, n) if n else Interval(value=0.0, low=0.0, high=1.0, n=0)

"""Defines scenarios with known truth: the taste that people have on each day."""

from pydantic import Field

from rlhf_pipeline.core.errors import ConfigurationError
from rlhf_pipeline.core.records import Record
from rlhf_pipeline.simulation.utilities import Taste

# Warm and sourced sentences have similar lengths, so a change between these two tastes does not
# reward length; both tastes want right answers and dislike rambling equally.
WARM_TASTE = Taste(
    name="warm",
    weights={
        "correct": 0.2,
        "warmth": 1.2,
        "sourcing": -1.0,
        "rambling": -0.9,
        "length": -0.1,
        "empty": -4.0,
    },
)
SOURCED_TASTE = Taste(
    name="sourced",
    weights={
        "correct": 0.2,
        "warmth": -1.0,
        "sourcing": 1.2,
        "rambling": -0.9,
        "length": -0.1,
        "empty": -4.0,
    },
)


class Scenario(Record):
    """Tastes by the day on which each begins, counted from 0."""

    name: str
    description: str
    tastes: tuple[tuple[int, Taste], ...] = Field(
        description="(first day index, taste), in order, the first from day 0"
    )

    @property
    def change_day_index(self) -> int | None:
        """The first day of another taste; None if taste never changes."""
        return self.tastes[1][0] if len(self.tastes) > 1 else None

    def taste_on(self, day_index: int) -> Taste:
        """The taste of a day; days are counted from 0."""
        if day_index < 0:
            raise ConfigurationError(
                f"Scenario {self.name} has no day {day_index}. Days count from 0: check start_day."
            )
        return [taste for first, taste in self.tastes if first <= day_index][-1]


def taste_change(change_day_index: int = 4) -> Scenario:
    """Taste changes from warm wording to sourced, formal wording on day index
    `change_day_index`.
    """
    return Scenario(
        name="taste_change",
        description=f"annotators like warmth, from day index {change_day_index} on sources",
        tastes=((0, WARM_TASTE), (change_day_index, SOURCED_TASTE)),
    )


# What simulated annotators of a home want, so that the demo has a change to notice
DEMO_SCENARIO = taste_change()

"""Simulated annotators and their clock as resources."""

from collections.abc import Callable
from datetime import UTC, date, datetime, time

import pandas as pd

from rlhf_pipeline.core.config import Settings
from rlhf_pipeline.core.records import NewVote
from rlhf_pipeline.simulation import DEMO_SCENARIO, AnnotatorPool, judge_rubric, simulate_votes

SEED = 7
N_ANNOTATORS = 12
VOTES_PER_COMPARISON = 3

SimulatedVotes = Callable[[pd.DataFrame, dict[str, str | None], str], list[NewVote]]


def simulated_votes(settings: Settings) -> SimulatedVotes:
    """A function `vote(comparisons, references, day)`: the day's votes of a seeded pool by the
    scenario's taste on that day, with answers in the dimensions of the rubric.
    """
    pool = AnnotatorPool(seed=SEED, n=N_ANNOTATORS)

    def vote(
        comparisons: pd.DataFrame, references: dict[str, str | None], day: str
    ) -> list[NewVote]:
        taste = DEMO_SCENARIO.taste_on((date.fromisoformat(day) - settings.start_day).days)
        cast = simulate_votes(
            comparisons,
            references,
            taste,
            pool,
            day=day,
            votes_per_comparison=VOTES_PER_COMPARISON,
            seed=SEED,
            start=_time_on_day(day, 8),
        )
        return judge_rubric(cast, comparisons, references, taste, pool, seed=SEED)

    return vote


def simulated_clock(day: str) -> datetime:
    """The time at which a simulated day's comparisons are published: in the morning, before its
    votes.
    """
    return _time_on_day(day, 5)


def _time_on_day(day: str, hour: int) -> datetime:
    return datetime.combine(date.fromisoformat(day), time(hour), UTC)

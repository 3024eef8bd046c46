"""Adds up the votes of all days by annotator and day."""

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import date, datetime

from rlhf_pipeline.core.records import AnnotatorKind
from rlhf_pipeline.store.vote_lists import DayTally


@dataclass
class VoteCounts:
    """Standing votes other than skips. Those of machines are counted separately; by day, only
    people's votes with a time count.
    """

    n_votes: int = 0
    n_simulated: int = 0  # of n_votes
    n_machine: int = 0
    n_skips: int = 0
    by_day: Counter[date] = field(default_factory=Counter)
    by_annotator: Counter[tuple[str, AnnotatorKind]] = field(default_factory=Counter)
    last_at: dict[str, datetime] = field(default_factory=dict)


def count_votes(tallies: Mapping[str, Sequence[DayTally]]) -> VoteCounts:
    counts = VoteCounts()
    for day, of_day in tallies.items():
        for tally in of_day:
            who, kind = tally.annotator_id, tally.annotator_kind
            counts.n_skips += tally.n_skips
            if tally.last_voted_at is not None:
                counts.last_at[who] = max(
                    tally.last_voted_at, counts.last_at.get(who, tally.last_voted_at)
                )
            if tally.n == 0:
                continue
            counts.by_annotator[who, kind] += tally.n
            if kind == AnnotatorKind.MACHINE:
                counts.n_machine += tally.n
                continue
            counts.n_votes += tally.n
            counts.n_simulated += tally.n if kind == AnnotatorKind.SIMULATED else 0
            if tally.n_dated:
                counts.by_day[date.fromisoformat(day)] += tally.n_dated
    return counts

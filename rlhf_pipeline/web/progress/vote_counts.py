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
    found = VoteCounts()
    for day, of_day in tallies.items():
        for one in of_day:
            who, kind = one.annotator_id, one.annotator_kind
            found.n_skips += one.n_skips
            if one.last_voted_at is not None:
                found.last_at[who] = max(
                    one.last_voted_at, found.last_at.get(who, one.last_voted_at)
                )
            if one.n == 0:
                continue
            found.by_annotator[who, kind] += one.n
            if kind == AnnotatorKind.MACHINE:
                found.n_machine += one.n
                continue
            found.n_votes += one.n
            found.n_simulated += one.n if kind == AnnotatorKind.SIMULATED else 0
            if one.n_dated:
                found.by_day[date.fromisoformat(day)] += one.n_dated
    return found

"""Marks suspect votes of one annotator: too fast, repeating the displayed side, or duplicate pairs.

The rules are those of `votes.annotators`, but on arrays of one annotator's votes, fast enough to
recompute after each vote.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, get_args

import numpy as np
import numpy.typing as npt

from rlhf_pipeline.api_types.filters import Mark
from rlhf_pipeline.intervals import wilson_bounds
from rlhf_pipeline.records import Interval
from rlhf_pipeline.votes.counting import find_last_turns

MARKS: tuple[Mark, ...] = get_args(Mark)

LEFT, RIGHT, NEITHER, UNKNOWN, SKIP = 1, -1, 0, 9, 2  # displayed side of a vote
NO_TIME = -1  # value of `is_fast` for a vote without a duration

# One row per vote as cast. Hashes: `comparison`; `about` is the original of a repeat, else the
# comparison itself; `pair` is of the prompt and the unordered completions. `turn` orders an
# annotator's votes on one comparison.
VOTES = np.dtype(
    [
        ("seq", "i8"),
        ("comparison", "i8"),
        ("about", "i8"),
        ("pair", "i8"),
        ("turn", "i8"),
        ("shown", "i1"),
        ("is_fast", "i1"),
    ]
)


@dataclass(frozen=True)
class MarkedVotes:
    """Ascending seqs of the votes with a mark, and the number `n` of votes to which the mark
    applies.
    """

    seqs: npt.NDArray[np.int64]
    n: int

    @cached_property
    def share(self) -> Interval | None:
        """Share of marked votes with Wilson's interval; None if `n` is 0. Cached, because a page
        sorts thousands of annotators by it.
        """
        if self.n == 0:
            return None
        value = len(self.seqs) / self.n
        low, high = wilson_bounds(value, self.n)
        return Interval(
            value=value, low=float(min(low, value)), high=float(max(high, value)), n=self.n
        )


@dataclass(frozen=True)
class Quality:
    """Marks of one annotator's counting votes, without skips."""

    n_votes: int
    marked: dict[Mark, MarkedVotes]


def quality(cast: npt.NDArray[Any]) -> Quality:
    """The marks of one annotator's VOTES, in any order. Per comparison only the last turn counts.

    `too_fast`: faster than anyone can read both completions, among votes with a duration.
    `same_as_before`: same displayed side as the previous vote, among votes with both known.
    `duplicate`: the annotator judged the same two completions before in another comparison, among
    votes that are not on repeats, which are duplicates on purpose.
    """
    last = cast[find_last_turns(cast["comparison"], cast["turn"])]
    judged = np.sort(last[last["shown"] != SKIP], order="seq")
    seq, shown = judged["seq"], judged["shown"]
    timed = judged["is_fast"] != NO_TIME
    followed = (shown[1:] != UNKNOWN) & (shown[:-1] != UNKNOWN)
    same = followed & (shown[1:] == shown[:-1])
    asked = judged[judged["about"] == judged["comparison"]]
    _, first = np.unique(
        asked["pair"], return_index=True
    )  # first vote of each pair, because seqs ascend
    again = np.ones(len(asked), dtype=bool)
    again[first] = False
    marked: dict[Mark, MarkedVotes] = {
        "too_fast": MarkedVotes(seq[judged["is_fast"] == 1], int(timed.sum())),
        "same_as_before": MarkedVotes(seq[1:][same], int(followed.sum())),
        "duplicate": MarkedVotes(asked["seq"][again], len(asked)),
    }
    return Quality(len(judged), marked)


def concern_score(found: Quality, of: Sequence[Mark] = MARKS) -> float:
    """Severity of the marks from 0 to 1: the highest lower bound of a share. `same_as_before`
    counts only above one half, its share under random voting.
    """
    lows = {mark: 0.0 if (share := found.marked[mark].share) is None else share.low for mark in of}
    return max(
        2 * max(0.0, low - 0.5) if mark == "same_as_before" else low for mark, low in lows.items()
    )

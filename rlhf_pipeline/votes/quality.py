"""How carefully an annotator votes, vote by vote: too fast to have read, always the same, the same
pair again. Knows arrays of one annotator's votes; knows no storage and nobody else's votes.

The rules are those of `votes.annotators`, which tells the same of a whole frame; these can be told
anew after each vote.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Literal, get_args

import numpy as np
import numpy.typing as npt

from rlhf_pipeline.intervals import wilson_bounds
from rlhf_pipeline.records import Interval

Mark = Literal["too_fast", "same_as_before", "duplicate"]
MARKS: tuple[Mark, ...] = get_args(Mark)

LEFT, RIGHT, NEITHER, UNKNOWN, SKIP = 1, -1, 0, 9, 2  # what was said, as it was shown
NO_TIME = -1  # of `is_fast`: nobody knows how long it took

# One row per vote as cast. comparison, about and pair are hashes: of the comparison, of the one it
# repeats (its own if none), of the two completions under their prompt, whichever stood left. turn
# orders an annotator's votes on one comparison.
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
    """Which votes bear a mark (seqs, ascending), and of how many votes that could be said."""

    seqs: npt.NDArray[np.int64]
    n: int

    @cached_property
    def share(self) -> Interval | None:
        """With Wilson's interval; None where it can be said of no vote. Told once: a page sorts
        thousands of annotators by it.
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
    """Of one annotator's judgements that count, skips left out."""

    n_votes: int
    marked: dict[Mark, MarkedVotes]


def quality(cast: npt.NDArray[Any]) -> Quality:
    """Of one annotator's VOTES in any order. Of several on a comparison the last turn counts.

    `too_fast`: faster than anybody reads both completions, of votes that say how long they took.
    `same_as_before`: the same as the vote before, as shown, of those of which both are known.
    `duplicate`: of two completions that the annotator had judged before under another comparison,
    of votes on comparisons that are no repeats: those are asked on purpose.
    """
    last = cast[np.lexsort((cast["turn"], cast["comparison"]))]
    is_last = (
        np.append(last["comparison"][1:] != last["comparison"][:-1], True)
        if len(last)
        else np.zeros(0, dtype=bool)
    )
    judged = np.sort(last[is_last & (last["shown"] != SKIP)], order="seq")
    seq, shown = judged["seq"], judged["shown"]
    timed = judged["is_fast"] != NO_TIME
    followed = (shown[1:] != UNKNOWN) & (shown[:-1] != UNKNOWN)
    same = followed & (shown[1:] == shown[:-1])
    asked = judged[judged["about"] == judged["comparison"]]
    _, first = np.unique(asked["pair"], return_index=True)  # the first of each pair, as seqs ascend
    again = np.ones(len(asked), dtype=bool)
    again[first] = False
    marked: dict[Mark, MarkedVotes] = {
        "too_fast": MarkedVotes(seq[judged["is_fast"] == 1], int(timed.sum())),
        "same_as_before": MarkedVotes(seq[1:][same], int(followed.sum())),
        "duplicate": MarkedVotes(asked["seq"][again], len(asked)),
    }
    return Quality(len(judged), marked)


def concern_score(found: Quality, of: Sequence[Mark] = MARKS) -> float:
    """What is surely odd, from 0 to 1: the highest lower end. Saying the same as before is odd
    above a half, which a coin says.
    """
    lows = {mark: 0.0 if (share := found.marked[mark].share) is None else share.low for mark in of}
    return max(
        2 * max(0.0, low - 0.5) if mark == "same_as_before" else low for mark, low in lows.items()
    )

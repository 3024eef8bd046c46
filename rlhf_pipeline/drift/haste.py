"""Finds votes cast much faster than their annotator usually takes."""

from collections import deque
from dataclasses import dataclass, field
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from rlhf_pipeline.drift.base import Floats

# An annotator counts as hasty while a CUSUM of log(usual / taken) stands above LIMIT. One vote at a
# third of the usual time adds 0.6, so that two or three of them in a row are found; votes of the
# usual speed, whose logarithm has a deviation of about 0.5, are found in 2 % of cases.
SLACK, LIMIT, CAP = 0.5, 0.9, 1.6
FIRST_VOTES = 50  # of all annotators, from which the usual time is first known
PRIOR_VOTES = 5  # weight of everybody's usual time in that of one annotator
REMEMBERED = 50  # votes of an annotator that their usual time is a mean of
LONGEST_SESSION = 60  # hasty votes of an annotator, after which further ones are read
DRIFT_OF_HASTE = 0.003  # an annotator who stays fast for hundreds of votes is fast, not hasty
ACTIVE_VOTES = 1000  # annotators of so many latest votes are active


@dataclass
class _Annotator:
    n_votes: int = 0
    log_usual: float = 0.0
    haste: float = 0.0
    is_hasty: bool = False
    n_hasty: int = 0  # less those that were not


@dataclass
class _Pace:
    """Usual times of everybody and of each annotator, from the votes so far."""

    n_votes: int = 0
    log_usual: float = 0.0
    annotators: dict[str, _Annotator] = field(default_factory=dict)
    active: deque[str] = field(default_factory=deque)
    n_active: dict[str, int] = field(default_factory=dict)
    n_hasty: int = 0

    def read(self, annotator_id: str, log_taken: float) -> tuple[bool, bool]:
        """Whether the vote is hasty, and whether it is left out where not everybody is; its time
        counts from now on.
        """
        one = self.annotators.setdefault(annotator_id, _Annotator())
        self._count_active(annotator_id)
        if self.n_votes < FIRST_VOTES:
            self._learn(one, log_taken)
            return False, False
        usual = one.n_votes * one.log_usual + PRIOR_VOTES * self.log_usual
        usual /= one.n_votes + PRIOR_VOTES
        one.haste = min(CAP, max(0.0, one.haste + usual - log_taken - SLACK))
        self._mark(one, one.haste > LIMIT)
        if one.is_hasty:
            one.log_usual += (log_taken - one.log_usual) * DRIFT_OF_HASTE
        else:
            self._learn(one, log_taken)
        one.n_hasty = max(0, one.n_hasty + (1 if one.is_hasty else -1))
        return one.is_hasty, one.is_hasty and one.n_hasty <= LONGEST_SESSION

    def _learn(self, one: _Annotator, log_taken: float) -> None:
        one.n_votes = min(one.n_votes + 1, REMEMBERED)
        one.log_usual += (log_taken - one.log_usual) / one.n_votes
        self.n_votes = min(self.n_votes + 1, 2 * ACTIVE_VOTES)
        self.log_usual += (log_taken - self.log_usual) / self.n_votes

    def _mark(self, one: _Annotator, is_hasty: bool) -> None:
        self.n_hasty += is_hasty - one.is_hasty
        one.is_hasty = is_hasty

    def _count_active(self, annotator_id: str) -> None:
        self.active.append(annotator_id)
        self.n_active[annotator_id] = self.n_active.get(annotator_id, 0) + 1
        if len(self.active) > ACTIVE_VOTES:
            gone = self.active.popleft()
            self.n_active[gone] -= 1
            if not self.n_active[gone]:
                del self.n_active[gone]
                self._mark(self.annotators[gone], False)


class HastyVotes(NamedTuple):
    """By vote: whether its annotator is hasty, and whether detectors leave it out therefore."""

    hasty: npt.NDArray[np.bool_]
    left_out: npt.NDArray[np.bool_]


def find_hasty_votes(
    annotator_ids: npt.NDArray[np.object_], durations_s: Floats, max_share: float
) -> HastyVotes:
    """Which votes, in the order in which they were cast, come from annotators who are hasty then.

    (n,) and (n,) give (n,). A vote is compared with earlier votes only. If more than `max_share` of
    the active annotators are hasty (and more than one), none of their votes is left out: then
    everybody has changed. After LONGEST_SESSION hasty votes of an annotator, further ones are read.
    Votes without a duration are never hasty; projects of fewer than three
    annotators have no usual time.
    """
    pace = _Pace()
    hasty, left_out = np.zeros((2, len(durations_s)), dtype=bool)
    is_known = np.isfinite(durations_s) & (durations_s > 0)
    log_taken = np.log(np.where(is_known, durations_s, 1.0)).tolist()
    for i in np.flatnonzero(is_known).tolist():
        is_hasty, is_session = pace.read(annotator_ids[i], log_taken[i])
        n = len(pace.n_active)
        hasty[i] = is_hasty and n >= 3
        left_out[i] = is_session and n >= 3 and pace.n_hasty <= max(1, max_share * n)
    return HastyVotes(hasty, left_out)

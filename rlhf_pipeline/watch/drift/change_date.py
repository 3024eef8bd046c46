"""Dates a rise: the vote before and after which its beginning is equally likely."""

from collections import deque

import numpy as np

from rlhf_pipeline.watch.drift.base import Floats

VOTES_PER_BLOCK = 10  # a rise begins at the first vote of a block
MAX_BLOCKS = 250  # among which its beginning is searched: the latest 2,500 votes
LATEST_BLOCKS = 10  # which show that a two-sided detector found a rise
MIN_AFTER = 20  # votes after a rise at least: a few errors in a row are chance


class ChangeDate:
    """The errors read so far, as counts of blocks.

    Every split into votes before and votes after is weighed by its likelihood, with the rate of
    each side estimated from its votes. The date is the weighted median: the likeliest split alone
    is much too late for slow rises, and the last zero of a CUSUM too early for fast ones.
    """

    def __init__(self) -> None:
        self._n_before = self._wrong_before = 0.0
        self._blocks: deque[list[float]] = deque()  # first seq, votes, errors

    def add(self, error: float, seq: int) -> None:
        if not self._blocks or self._blocks[-1][1] >= VOTES_PER_BLOCK:
            self._blocks.append([seq, 0, 0.0])
        self._blocks[-1][1] += 1
        self._blocks[-1][2] += error
        if len(self._blocks) > MAX_BLOCKS:
            _, n, wrong = self._blocks.popleft()
            self._n_before += n
            self._wrong_before += wrong

    def estimate(self) -> tuple[float, float, int]:
        """The error rates before and after the rise, and its first vote; the rate of all votes
        twice if it has not risen, or if the latest blocks err no more than all votes.
        """
        first_seqs, n, wrong = np.array(self._blocks, dtype=float).T
        n_after, wrong_after = (np.cumsum(counts[::-1])[::-1] for counts in (n, wrong))
        n_before = self._n_before + n_after[0] - n_after
        wrong_before = self._wrong_before + wrong_after[0] - wrong_after
        has_risen = (wrong_after * n_before > wrong_before * n_after) & (n_after >= MIN_AFTER)
        rate = float((wrong_before[-1] + wrong_after[-1]) / (n_before[-1] + n_after[-1]))
        is_high = wrong[-LATEST_BLOCKS:].sum() > rate * n[-LATEST_BLOCKS:].sum()
        if not has_risen.any() or not is_high:
            return rate, rate, int(first_seqs[-1])
        likelihood = _log_likelihood(wrong_before, n_before) + _log_likelihood(wrong_after, n_after)
        likelihood = np.where(has_risen, likelihood, -np.inf)
        total = np.cumsum(np.exp(likelihood - likelihood.max()))
        at = int(np.searchsorted(total, total[-1] / 2))
        before = wrong_before[at] / max(n_before[at], 1.0)
        return float(before), float(wrong_after[at] / n_after[at]), int(first_seqs[at])


def _log_likelihood(wrong: Floats, n: Floats) -> Floats:
    """Of each count of errors at its own rate; 0 for no votes."""
    result: Floats = _n_log_n(wrong) + _n_log_n(n - wrong) - _n_log_n(n)
    return result


def _n_log_n(n: Floats) -> Floats:
    result: Floats = n * np.log(np.maximum(n, 1e-12))
    return result

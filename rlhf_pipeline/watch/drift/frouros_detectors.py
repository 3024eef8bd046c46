"""Frouros' streaming detectors, all through one adapter."""

import math
import random
from collections import deque
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, ClassVar, NamedTuple

import numpy as np
from pydantic import BaseModel

from rlhf_pipeline.core.plugins import NoParams
from rlhf_pipeline.watch.drift.base import Floats, Signal, StreamVote
from rlhf_pipeline.watch.drift.sequential_test import fit_bias

USUAL_ERROR = 0.25  # the constant rate where there is no reference


class _Entry(NamedTuple):
    """A class of `frouros.detectors.concept_drift`, and what its configuration changes."""

    frouros: str
    config: Mapping[str, float] = {}


# name -> detector. KSWIN and BOCD are missing: a vote costs them 0.5 ms and more, and a report
# reads all votes on a model. Limits are for error rates of .15 to .35: with most of the library's
# own, a steady stream of 1,000 votes gives an alarm, or a rise by .15 none.
TABLE: Mapping[str, _Entry] = {
    "ddm": _Entry("DDM", {"min_num_instances": 100}),
    "adwin": _Entry("ADWIN", {"delta": 0.1, "clock": 8, "min_num_instances": 30}),
    "hddm_a": _Entry("HDDMA"),
    "eddm": _Entry("EDDM", {"alpha": 0.9, "beta": 0.8, "min_num_misclassified_instances": 100}),
    "rddm": _Entry(
        "RDDM",
        {
            "warning_level": 2.0,
            "drift_level": 3.0,
            "max_concept_size": 4000,
            "min_concept_size": 1000,
            "max_num_instances_warning": 1000,
            "min_num_instances": 100,
        },
    ),
    "hddm_w": _Entry("HDDMW", {"lambda_": 0.02}),
    "ecdd": _Entry("ECDDWT", {"lambda_": 0.02, "average_run_length": 1000}),
    "cusum": _Entry("CUSUM", {"delta": 0.1, "lambda_": 9.0, "min_num_instances": 50}),
    "page_hinkley": _Entry(
        "PageHinkley", {"delta": 0.03, "lambda_": 10.0, "alpha": 0.99, "min_num_instances": 50}
    ),
    "stepd": _Entry("STEPD", {"alpha_d": 0.0005}),
}


class FrourosDetector:
    """Feeds a Frouros detector errors of one constant rate, and starts afresh after a signal.

    Frouros expects a rate that is constant until it changes, but that of votes follows what the
    predictions state. So each error is made one of the constant rate q by a coupling: where p > q
    is stated an error stays one with probability q / p, where p < q a hit becomes one with
    probability (q - p) / (1 - p). The draw follows from the vote's seq. A rise is dated by the
    likelihood of all splits (`ChangeDate`); a change in which errors do not rise gives no signal.
    """

    name: ClassVar[str]
    Params: ClassVar[type[BaseModel]] = NoParams
    entry: ClassVar[_Entry]

    def __init__(self, params: Any) -> None:
        self.params = params

    def find_rises(
        self, votes: Iterable[StreamVote], reference: Sequence[StreamVote] = ()
    ) -> Iterator[Signal]:
        """As `base.DriftDetector`; the reference teaches the bias and the level."""
        stated = np.array([v.stated for v in reference])
        errors = np.array([v.error for v in reference])
        bias, _ = fit_bias(stated, errors, np.ones(len(stated)))
        rate = float(np.mean(1 / (1 + np.exp(-stated - bias)))) if len(stated) else USUAL_ERROR
        detector, dates, n = self._make(), ChangeDate(), 0
        for i, vote in enumerate((*reference, *votes)):
            error = _couple(vote, bias, rate)
            n += 1
            detector.update(value=error)
            dates.add(error, vote.seq)
            if not detector.drift:
                continue
            before, after, change_seq = dates.estimate()
            if i >= len(reference) and after > before:
                evidence = {"n_votes": float(n), "error_before": before, "error_after": after}
                yield Signal(seq=vote.seq, change_seq=change_seq, evidence=evidence)
            detector, dates, n = self._make(), ChangeDate(), 0

    def _make(self) -> Any:
        from frouros.detectors import concept_drift

        config = getattr(concept_drift, f"{self.entry.frouros}Config")(**self.entry.config)
        return getattr(concept_drift, self.entry.frouros)(config=config)


FROUROS: Mapping[str, type[FrourosDetector]] = {
    name: type(entry.frouros, (FrourosDetector,), {"name": name, "entry": entry})
    for name, entry in TABLE.items()
}


def _couple(vote: StreamVote, bias: float, rate: float) -> int:
    """The vote's error as one of the constant rate."""
    p = 1 / (1 + math.exp(-vote.stated - bias))
    draw = random.Random(vote.seq).random()
    if vote.error:
        return int(draw < rate / p)
    return int(draw < (rate - p) / (1 - p))


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

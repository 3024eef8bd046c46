"""One sequential test of the votes on a model's predictions: has the chance of an error risen above
what the predictions state?

Each error is compared with its *stated* chance, so harder prompts and unsure pairs are no change.
The statistic is Shiryaev–Roberts' (Shiryaev 1963, Roberts 1966) of log ratios between the stated
log odds of an error and the same raised by one of `SHIFTS`, over all votes and in each category.
For independent votes 1/limit bounds the chance that an alarm comes at a given vote, so that the
mean number of votes between false alarms is at least the limit; votes are not independent, and four
things keep the rate near that:

- votes of a day on one comparison share one error: the j-th counts n(j) - n(j - 1),
  n(m) = m / (1 + (m - 1) rho), the effective number of m equally correlated votes (Kish 1965);
- the model's own bias, people's and weekdays' are subtracted as ridge estimates from the reference
  and votes of earlier days; a person's only as it differs from everybody's, or a change of all
  would be learnt away;
- a person's day and week, and a day of all, deviate together: the log ratio of a cluster is divided
  by 1 + V tau², V being its information and tau² the variance of such clusters so far;
- of a day's log ratio beyond `SURE_DAY` only a tenth counts, so that two days have to agree, unless
  one is overwhelming.

Tempering keeps a supermartingale only for independent votes: the rates are measured
(`benchmarks/bench_changes.py`).
"""

import math
from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from datetime import date
from typing import ClassVar

import numpy as np
from pydantic import BaseModel, Field

from rlhf_pipeline.core.parameters import Parameters
from rlhf_pipeline.watch.drift.base import Floats, Signal, StreamVote

SHIFTS = (0.25, 0.5, 0.8, 1.3)  # of the log odds of an error
CORRELATION = 0.35  # of the errors of two votes on one comparison
PERSON_SD, WEEKDAY_SD, BIAS_SD = 0.25, 0.15, 0.3  # priors of the offsets, in log odds
LEARNT_AFTER = 1000  # votes: younger ones could hide a slow change from the bias
TOLERANCE = 0.05  # log odds that are no change
SURE_DAY, BEYOND = 4.0, 0.1  # log ratio of a day that counts in full, and what counts beyond it
DAY_PRIOR, MOST_DAY_VARIANCE = 0.01, 0.3
NEWTON_STEPS = 4


class SequentialTestParams(Parameters):
    """Parameters of the sequential test."""

    sequential_test_limit: float = Field(
        default=5000.0,
        gt=1,
        le=1e6,
        description="Sequential test: votes between false alarms at least, were votes independent; "
        "a higher limit finds small changes later",
    )


class SequentialTest:
    """Shiryaev–Roberts test of the errors against their stated chances; it starts afresh after each
    signal.

    >>> def draw(seq, error):
    ...     day = f"2031-01-{1 + seq // 100:02d}"
    ...     return StreamVote(seq, day, f"p{seq % 7}", f"c{seq}", "all", math.log(1 / 3), error)
    >>> errors = [0, 0, 0, 1] * 100 + [1, 0] * 200
    >>> votes = [draw(seq, error) for seq, error in enumerate(errors)]
    >>> [400 < s.seq < 600 for s in SequentialTest(SequentialTestParams()).find_rises(votes)][:1]
    [True]
    """

    name: ClassVar[str] = "sequential_test"
    Params: ClassVar[type[BaseModel]] = SequentialTestParams

    def __init__(self, params: SequentialTestParams) -> None:
        self.params = params

    def find_rises(
        self, votes: Iterable[StreamVote], reference: Sequence[StreamVote] = ()
    ) -> Iterator[Signal]:
        """As `base.DriftDetector`. The day of a vote that comes late is that of the votes before
        it: what an earlier day taught stands.
        """
        reader = _StreamDetector(self.params.sequential_test_limit, reference)
        for vote in votes:
            signal = reader.read(vote)
            if signal is not None:
                yield signal


@dataclass
class _Score:
    """Excess of errors over their stated chances and its information: sums of w (e - p) and
    w p (1 - p).
    """

    excess: float = 0.0
    information: float = 0.0

    def add(self, other: "_Score") -> None:
        self.excess += other.excess
        self.information += other.information

    @property
    def mean(self) -> float:
        """The log odds by which errors exceed what is stated; 0 without votes."""
        return self.excess / (self.information + 1e-9)

    def shrunk(self, mean: float, sd: float) -> float:
        """The ridge estimate of the log odds by which it differs from `mean`."""
        return (self.excess - self.information * mean) / (self.information + 1 / sd**2)

    def variance(self, sd: float) -> float:
        """Of the ridge estimate."""
        return 1 / (self.information + 1 / sd**2)

    def beyond(self, offset: float) -> "_Score":
        """What exceeds an offset in log odds."""
        return _Score(self.excess - offset * self.information, self.information)


@dataclass
class _Variance:
    """The variance of the log odds between clusters, from their excess beyond chance."""

    prior: float
    beyond: float = 0.0
    squared: float = 0.0

    @property
    def value(self) -> float:
        # the prior weighs as much as information of 10,000 squared
        mean = (self.beyond + self.prior * 1e4) / (self.squared + 1e4)
        return min(MOST_DAY_VARIANCE, max(0.0, mean))

    def add(self, score: _Score) -> None:
        self.beyond += score.excess**2 - score.information
        self.squared += score.information**2


@dataclass
class _Cluster:
    """Log ratios of votes that deviate together, one for each shift."""

    variance: float = 0.0  # of the log odds between such clusters
    in_full: float = math.inf  # the log ratio beyond which only a share counts
    sums: list[float] = field(default_factory=lambda: [0.0] * len(SHIFTS))
    information: float = 0.0
    counted: list[float] = field(default_factory=lambda: [0.0] * len(SHIFTS))

    def add(self, steps: list[float], information: float) -> list[float]:
        """Add the steps of one vote; returns by how much the tempered sums changed."""
        self.information += information
        weight = 1 / (1 + self.information * self.variance)
        changed = []
        for i, step in enumerate(steps):
            self.sums[i] += step
            now = self.sums[i] * weight
            if now > self.in_full:
                now = self.in_full + BEYOND * (now - self.in_full)
            changed.append(now - self.counted[i])
            self.counted[i] = now
        return changed


class _Evidence:
    """Shiryaev–Roberts' statistic of each shift, in logarithms, and the likeliest beginning of a
    rise (Page's CUSUM, 1954): of whole log ratios, since what a day counts at most says nothing
    about the date.
    """

    def __init__(self) -> None:
        self.logs = [-math.inf] * len(SHIFTS)
        self.risen = [0.0] * len(SHIFTS)
        self.since = [0] * len(SHIFTS)
        self.mean = 0.0

    def add(self, counted: list[float], steps: list[float], seq: int) -> None:
        for i, step in enumerate(steps):
            self.logs[i] = _log1p_exp(self.logs[i]) + counted[i]
            if self.risen[i] <= 0:
                self.risen[i], self.since[i] = 0.0, seq
            self.risen[i] += step
        self.mean = sum(math.exp(min(log_value, 700.0)) for log_value in self.logs) / len(SHIFTS)

    @property
    def change_seq(self) -> int:
        return self.since[max(range(len(SHIFTS)), key=lambda i: self.risen[i])]


class _StreamDay:
    """The votes of one day so far, and what earlier days teach about them."""

    def __init__(self, weekday: int, of_day: float, of_person_day: float) -> None:
        self.weekday = weekday
        self._of_day, self._of_person_day = of_day, of_person_day
        self.offsets: dict[str, float] = {}
        self.scores: defaultdict[str, _Score] = defaultdict(_Score)
        self.n_on: defaultdict[str, int] = defaultdict(int)
        self.restart()

    def restart(self) -> None:
        """Forget the log ratios: after a signal the evidence starts afresh within the day."""
        self.person_days: defaultdict[str, _Cluster] = defaultdict(
            lambda: _Cluster(self._of_person_day)
        )
        self.whole = _Cluster(self._of_day, SURE_DAY)
        self.categories: defaultdict[str, _Cluster] = defaultdict(
            lambda: _Cluster(self._of_day, SURE_DAY)
        )


class _StreamDetector:
    """The state of the test after the votes read so far."""

    def __init__(self, limit: float, reference: Sequence[StreamVote]) -> None:
        self._limit = limit
        self._everybody = _Score()
        self._people: defaultdict[str, _Score] = defaultdict(_Score)
        self._weekdays: defaultdict[int, _Score] = defaultdict(_Score)
        self._of_days, self._of_person_days = _Variance(DAY_PRIOR), _Variance(0.0)
        weights = _weigh(reference)
        self._bias_votes = [(v.stated, v.error, w) for v, w in zip(reference, weights, strict=True)]
        self._waiting: list[tuple[float, float, float]] = []
        self._bias, self._bias_sd = 0.0, BIAS_SD
        self._since_signal: list[tuple[int, str, float, float]] = []  # seq, category, p, error
        self._date, self._week = "", (0, 0)
        self._day = _StreamDay(0, 0.0, 0.0)
        self._restart()
        self._fit_bias()
        for v, weight in zip(reference, weights, strict=True):
            score = self._score(v, weight)
            self._everybody.add(score)
            self._people[v.annotator_id].add(score)

    def _restart(self) -> None:
        self._all = _Evidence()
        self._categories: defaultdict[str, _Evidence] = defaultdict(_Evidence)
        self._person_weeks: defaultdict[str, _Cluster] = defaultdict(_Cluster)
        self._since_signal.clear()

    def read(self, v: StreamVote) -> Signal | None:
        if v.day > self._date:
            self._begin_day(v.day)
        day, who = self._day, v.annotator_id
        if who not in day.offsets:
            day.offsets[who] = self._find_offset(who)
        week = self._person_weeks[who]
        week.variance = self._people[who].variance(PERSON_SD)
        day.n_on[v.comparison_id] += 1
        n = day.n_on[v.comparison_id]
        weight = _effective(n) - _effective(n - 1)
        odds = v.stated + day.offsets[who]
        p = _expit(odds)
        information = weight * p * (1 - p)
        steps = [weight * log_ratio for log_ratio in _log_ratios(odds, p, v.error)]
        of_person = week.add(day.person_days[who].add(steps, information), information)
        counted = day.whole.add(of_person, information)
        self._all.add(counted, steps, v.seq)
        counted = day.categories[v.category].add(of_person, information)
        self._categories[v.category].add(counted, steps, v.seq)
        day.scores[who].add(self._score(v, weight))
        self._waiting.append((v.stated, v.error, weight))
        self._since_signal.append((v.seq, v.category, _expit(v.stated), v.error))
        signal = self._find_signal(v)
        if signal is not None:
            self._restart()
            day.restart()
        return signal

    def _find_signal(self, v: StreamVote) -> Signal | None:
        n = len(self._categories)
        shared = sum(category.mean for category in self._categories.values()) / n
        value = (self._all.mean + shared) / 2 if n > 1 else self._all.mean
        if value < self._limit:
            return None
        top = max(self._categories, key=lambda name: self._categories[name].mean)
        is_category = n > 1 and self._categories[top].mean / n > self._all.mean
        category = top if is_category else None
        since = (self._categories[top] if is_category else self._all).change_seq
        votes = [
            step for step in self._since_signal if step[0] >= since and category in (None, step[1])
        ]
        return Signal(
            seq=v.seq,
            change_seq=since,
            category=category,
            evidence={
                "statistic": value,
                "threshold": self._limit,
                "n_after": float(len(votes)),
                "error_expected": sum(p for _, _, p, _ in votes) / len(votes),
                "error_after": sum(error for *_, error in votes) / len(votes),
            },
        )

    def _begin_day(self, day: str) -> None:
        if self._date:
            self._learn_day()
        self._date = day
        now = date.fromisoformat(day)
        week = now.isocalendar()[:2]
        if week != self._week:
            self._week = week
            self._person_weeks.clear()
        self._day = _StreamDay(now.weekday(), self._of_days.value, self._of_person_days.value)

    def _find_offset(self, who: str) -> float:
        """The log odds by which errors of the person on the day usually exceed what is stated."""
        mean = self._everybody.mean
        return (
            self._bias
            + self._people[who].shrunk(mean, PERSON_SD)
            + self._weekdays[self._day.weekday].shrunk(mean, WEEKDAY_SD)
            + TOLERANCE
            + self._bias_sd / 2
        )

    def _learn_day(self) -> None:
        total, weekday = _Score(), self._weekdays[self._day.weekday]
        mean = self._everybody.mean
        for name, score in self._day.scores.items():
            own = self._people[name].shrunk(mean, PERSON_SD)
            self._of_person_days.add(score.beyond(own))
            total.add(score)
            self._people[name].add(score)
        self._everybody.add(total)
        self._of_days.add(total.beyond(weekday.shrunk(mean, WEEKDAY_SD)))
        weekday.add(total)
        n_old = len(self._waiting) - LEARNT_AFTER
        if n_old > 0:
            self._bias_votes += self._waiting[:n_old]
            del self._waiting[:n_old]
            self._fit_bias()

    def _score(self, v: StreamVote, weight: float) -> _Score:
        p = _expit(v.stated + self._bias)
        return _Score(weight * (v.error - p), weight * p * (1 - p))

    def _fit_bias(self) -> None:
        """The ridge estimate of the log odds by which all errors differ from what is stated."""
        stated, error, weight = np.array(self._bias_votes, dtype=float).reshape(-1, 3).T
        self._bias, self._bias_sd = fit_bias(stated, error, weight, self._bias)


def fit_bias(
    stated: Floats, error: Floats, weight: Floats, start: float = 0.0
) -> tuple[float, float]:
    """The log odds by which errors (n,) exceed the stated ones (n,), as a ridge estimate with the
    prior BIAS_SD, and its standard deviation.
    """
    bias, information = start, 1 / BIAS_SD**2
    for _ in range(NEWTON_STEPS):
        p = 1 / (1 + np.exp(-(stated + bias)))
        excess = float(weight @ (error - p)) - bias / BIAS_SD**2
        information = float(weight @ (p * (1 - p))) + 1 / BIAS_SD**2
        bias += excess / information
    return bias, information**-0.5


def _weigh(votes: Sequence[StreamVote]) -> list[float]:
    """How much each counts: those of one comparison share its error."""
    n_on: defaultdict[str, int] = defaultdict(int)
    weights = []
    for vote in votes:
        n_on[vote.comparison_id] += 1
        n = n_on[vote.comparison_id]
        weights.append(_effective(n) - _effective(n - 1))
    return weights


def _effective(n: int) -> float:
    return n / (1 + (n - 1) * CORRELATION) if n else 0.0


def _log_ratios(odds: float, p: float, error: float) -> list[float]:
    """Log of the chance of the error at raised log odds over that at `odds`, for each shift."""
    log_rest = math.log1p(-p)
    return [error * shift - _log1p_exp(odds + shift) - log_rest for shift in SHIFTS]


def _expit(x: float) -> float:
    return 1 / (1 + math.exp(-x))


def _log1p_exp(x: float) -> float:
    """log(1 + exp(x))"""
    return x + math.log1p(math.exp(-x)) if x > 0 else math.log1p(math.exp(x))

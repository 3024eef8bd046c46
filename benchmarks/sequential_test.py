"""One sequential test of the votes on a model's predictions: has the chance of an error risen above
what the predictions state?

Each error is compared with its *stated* chance, so harder prompts and unsure pairs are no change.
The statistic is Shiryaev–Roberts' (Shiryaev 1963, Roberts 1966) of log ratios between the stated
log odds of an error and the same raised by one of `SHIFTS`, over all votes and in each category.
For independent votes 1/`limit` bounds the chance that an alarm comes at a given vote, so that the
mean number of votes between false alarms is at least `limit`; votes are not independent, and four
things keep the rate near that:

- votes of one comparison share one error: the j-th counts n(j) - n(j - 1), n(m) = m / (1 + (m - 1)
  rho), the effective number of m equally correlated votes (Kish 1965);
- the model's own bias, people's and weekdays' are subtracted as ridge estimates from the reference
  and votes of earlier days; a person's only as it differs from everybody's, or a change of all
  would be learnt away;
- a person's day and week, and a day of all, deviate together: the log ratio of a cluster is divided
  by 1 + V tau², V being its information and tau² the variance of such clusters so far;
- a day counts at most `MOST_A_DAY`, so that two days have to agree.

Tempering keeps a supermartingale only for independent votes: the rates are measured
(`benchmarks/bench_changes.py`).
"""

import math
from collections import defaultdict
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from itertools import groupby
from typing import Any, NamedTuple

SHIFTS = (0.25, 0.5, 0.8, 1.3)  # of the log odds of an error
CORRELATION = 0.35  # of the errors of two votes on one comparison
PERSON_SD, WEEKDAY_SD, BIAS_SD = 0.25, 0.15, 0.3  # priors of the offsets, in log odds
LEARNT_AFTER = 1000  # votes: younger ones could hide a slow change from the bias
TOLERANCE = 0.05  # log odds that are no change
MOST_A_DAY = 4.0  # log ratio
DAY_PRIOR, MOST_DAY_VARIANCE = 0.01, 0.3


class StreamVote(NamedTuple):
    """A vote on a prediction; `stated` are the log odds of an error by the prediction."""

    seq: int
    day: str
    weekday: int
    week: str
    annotator_id: str
    comparison_id: str
    category: str
    stated: float
    error: float


class Alarm(NamedTuple):
    """The statistic exceeded the limit at vote `seq`; `change_seq` is where the evidence began, and
    `category` is None if all votes show it.
    """

    seq: int
    change_seq: int
    category: str | None
    value: float


@dataclass
class _Score:
    """Excess of errors over their stated chances and its information: sums of w (e - p) and
    w p (1 - p).
    """

    excess: float = 0.0
    information: float = 0.0

    def add(self, excess: float, information: float) -> None:
        self.excess += excess
        self.information += information

    def shrunk(self, mean: float, sd: float) -> float:
        """The ridge estimate of the log odds by which it differs from `mean`."""
        return (self.excess - self.information * mean) / (self.information + 1 / sd**2)


@dataclass
class _Variance:
    """The variance of the log odds between clusters, from their excess beyond chance."""

    prior: float
    most: float
    beyond: float = 0.0
    squared: float = 0.0

    @property
    def value(self) -> float:
        # the prior weighs as much as information of 10,000 squared
        mean = (self.beyond + self.prior * 1e4) / (self.squared + 1e4)
        return min(self.most, max(0.0, mean))

    def add(self, score: _Score) -> None:
        self.beyond += score.excess**2 - score.information
        self.squared += score.information**2


@dataclass
class _Cluster:
    """Log ratios of votes that deviate together, one for each shift."""

    sums: list[float] = field(default_factory=lambda: [0.0] * len(SHIFTS))
    information: float = 0.0
    told: list[float] = field(default_factory=lambda: [0.0] * len(SHIFTS))

    def add(
        self, steps: list[float], information: float, variance: float, most: float
    ) -> list[float]:
        """Add the steps of one vote; returns by how much the tempered sums changed."""
        self.information += information
        weight = 1 / (1 + self.information * variance)
        changed = []
        for i, step in enumerate(steps):
            self.sums[i] += step
            now = min(most, self.sums[i] * weight)
            changed.append(now - self.told[i])
            self.told[i] = now
        return changed


class _Evidence:
    """Shiryaev–Roberts' statistic of each shift, in logarithms, and since when the log ratios have
    risen (the date of Page's CUSUM, 1954).
    """

    def __init__(self) -> None:
        self.logs = [-math.inf] * len(SHIFTS)
        self.risen = [0.0] * len(SHIFTS)
        self.since = [0] * len(SHIFTS)

    def add(self, steps: list[float], seq: int) -> None:
        for i, step in enumerate(steps):
            self.logs[i] = _log1p_exp(self.logs[i]) + step
            if self.risen[i] <= 0:
                self.risen[i], self.since[i] = 0.0, seq
            self.risen[i] += step

    @property
    def mean(self) -> float:
        return sum(math.exp(min(each, 700.0)) for each in self.logs) / len(SHIFTS)

    @property
    def change_seq(self) -> int:
        return self.since[max(range(len(SHIFTS)), key=lambda i: self.logs[i])]


class SequentialTest:
    """Reads the votes of one model in seq order and raises alarms; after one it starts afresh.

    `limit`: votes between false alarms at least, were they independent.
    """

    def __init__(self, limit: float = 5000.0) -> None:
        self.limit = limit
        self._everybody = _Score()
        self._people: defaultdict[str, _Score] = defaultdict(_Score)
        self._weekdays: defaultdict[int, _Score] = defaultdict(_Score)
        self._of_days = _Variance(DAY_PRIOR, MOST_DAY_VARIANCE)
        self._of_person_days = _Variance(0.0, MOST_DAY_VARIANCE)
        self._bias_votes: list[tuple[float, float, float]] = []  # stated, error, weight
        self._waiting: list[tuple[float, float, float]] = []
        self._bias, self._bias_sd = 0.0, BIAS_SD
        self._restart()

    def _restart(self) -> None:
        self._all = _Evidence()
        self._categories: defaultdict[str, _Evidence] = defaultdict(_Evidence)
        self._person_weeks: defaultdict[str, _Cluster] = defaultdict(_Cluster)
        self._week = ""

    def learn_reference(self, votes: Iterable[StreamVote]) -> None:
        """Learn bias and people from votes on held-out predictions, which raise no alarm."""
        rows = list(votes)
        self._bias_votes += [(v.stated, v.error, 1.0) for v in rows]
        self._fit_bias()
        for v in rows:
            excess, information = _score(v, 1.0, self._bias)
            self._everybody.add(excess, information)
            self._people[v.annotator_id].add(excess, information)

    def read(self, votes: Iterable[StreamVote]) -> Iterator[Alarm]:
        """The alarms of votes in seq order; whole days, each once."""
        for _, of_day in groupby(votes, key=lambda v: v.day):
            yield from self._read_day(list(of_day))

    def _read_day(self, votes: list[StreamVote]) -> Iterator[Alarm]:
        n_on: defaultdict[str, int] = defaultdict(int)
        if votes[0].week != self._week:
            self._week = votes[0].week
            self._person_weeks.clear()
        tolerance = TOLERANCE + self._bias_sd / 2
        mean = self._everybody.excess / (self._everybody.information + 1e-9)
        offsets = {
            v.annotator_id: self._bias
            + self._people[v.annotator_id].shrunk(mean, PERSON_SD)
            + self._weekdays[v.weekday].shrunk(mean, WEEKDAY_SD)
            + tolerance
            for v in votes
        }
        person_variance = {
            name: 1 / (self._people[name].information + 1 / PERSON_SD**2) for name in offsets
        }
        of_day, of_person_day = self._of_days.value, self._of_person_days.value
        person_days: defaultdict[str, _Cluster] = defaultdict(_Cluster)
        whole_day, category_days = _Cluster(), defaultdict[str, _Cluster](_Cluster)
        scores: defaultdict[str, _Score] = defaultdict(_Score)
        for v in votes:
            n_on[v.comparison_id] += 1
            weight = _effective(n_on[v.comparison_id]) - _effective(n_on[v.comparison_id] - 1)
            who = v.annotator_id
            offset = offsets[who]
            p = _expit(v.stated + offset)
            information = weight * p * (1 - p)
            steps = [weight * each for each in _log_ratios(v.stated + offset, p, v.error)]
            steps = person_days[who].add(steps, information, of_person_day, math.inf)
            steps = self._person_weeks[who].add(steps, information, person_variance[who], math.inf)
            of_category = category_days[v.category].add(steps, information, of_day, MOST_A_DAY)
            self._all.add(whole_day.add(steps, information, of_day, MOST_A_DAY), v.seq)
            self._categories[v.category].add(of_category, v.seq)
            scores[who].add(*_score(v, weight, self._bias))
            self._waiting.append((v.stated, v.error, weight))
            if (alarm := self._find_alarm(v)) is not None:
                yield alarm
                self._restart()
                person_days.clear()
                whole_day, category_days = _Cluster(), defaultdict(_Cluster)
                self._week = v.week
        self._learn_day(votes[0].weekday, scores)

    def _find_alarm(self, v: StreamVote) -> Alarm | None:
        n = len(self._categories)
        shared = sum(each.mean for each in self._categories.values()) / n
        value = (self._all.mean + shared) / 2 if n > 1 else self._all.mean
        if value < self.limit:
            return None
        top = max(self._categories, key=lambda name: self._categories[name].mean)
        if n > 1 and self._categories[top].mean / n > self._all.mean:
            return Alarm(v.seq, self._categories[top].change_seq, top, value)
        return Alarm(v.seq, self._all.change_seq, None, value)

    def _learn_day(self, weekday: int, scores: dict[str, _Score]) -> None:
        total = _Score()
        mean = self._everybody.excess / (self._everybody.information + 1e-9)
        for name, score in scores.items():
            own = self._people[name].shrunk(mean, PERSON_SD)
            self._of_person_days.add(
                _Score(score.excess - own * score.information, score.information)
            )
            total.add(score.excess, score.information)
            self._people[name].add(score.excess, score.information)
        self._everybody.add(total.excess, total.information)
        expected = self._weekdays[weekday].shrunk(mean, WEEKDAY_SD)
        self._of_days.add(_Score(total.excess - expected * total.information, total.information))
        self._weekdays[weekday].add(total.excess, total.information)
        n_old = len(self._waiting) - LEARNT_AFTER
        if n_old > 0:
            self._bias_votes += self._waiting[:n_old]
            del self._waiting[:n_old]
            self._fit_bias()

    def _fit_bias(self) -> None:
        """The ridge estimate of the log odds by which all errors differ from what is stated."""
        bias, information = self._bias, 1 / BIAS_SD**2
        for _ in range(4):
            excess, information = -bias / BIAS_SD**2, 1 / BIAS_SD**2
            for stated, error, weight in self._bias_votes:
                p = _expit(stated + bias)
                excess += weight * (error - p)
                information += weight * p * (1 - p)
            bias += excess / information
        self._bias, self._bias_sd = bias, information**-0.5


def _effective(n: int) -> float:
    return n / (1 + (n - 1) * CORRELATION) if n else 0.0


def _score(v: StreamVote, weight: float, bias: float) -> tuple[float, float]:
    p = _expit(v.stated + bias)
    return weight * (v.error - p), weight * p * (1 - p)


def _log_ratios(odds: float, p: float, error: float) -> list[float]:
    """Log of the chance of the error at raised log odds over that at `odds`, for each shift."""
    log_rest = math.log1p(-p)
    return [error * shift + (-_log1p_exp(odds + shift)) - log_rest for shift in SHIFTS]


def _expit(x: float) -> float:
    return 1 / (1 + math.exp(-x))


def _log1p_exp(x: float) -> float:
    """log(1 + exp(x))"""
    return x + math.log1p(math.exp(-x)) if x > 0 else math.log1p(math.exp(x))


def stream_votes(frame: Any) -> list[StreamVote]:
    """The rows of a frame with the columns seq, day, annotator_id, comparison_id, category,
    expected_error, error.
    """
    import numpy as np
    import pandas as pd

    rows = frame.sort_values("seq")
    chance = np.clip(rows["expected_error"].to_numpy(dtype=float), 1e-3, 1 - 1e-3)
    days = pd.to_datetime(rows["day"])
    week = days.dt.strftime("%G-%V")
    return [
        StreamVote(*row)
        for row in zip(
            rows["seq"].tolist(),
            rows["day"].tolist(),
            days.dt.weekday.tolist(),
            week.tolist(),
            rows["annotator_id"].tolist(),
            rows["comparison_id"].tolist(),
            rows["category"].tolist(),
            np.log(chance / (1 - chance)).tolist(),
            rows["error"].tolist(),
            strict=True,
        )
    ]

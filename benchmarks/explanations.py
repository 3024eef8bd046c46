"""Compares explanations of a change: each states the chance of an error of every vote after it.

The stated log odds of an error, with the bias of the model and of each annotator from earlier
votes, are the offset of every explanation; each adds one term:

- *taste*: everybody errs more (a constant in log odds, or a share of the winners turned);
- *category*: a share of one category's winners turned;
- *newcomers*: people without earlier votes prefer the other side in a share of comparisons;
- *carelessness*: single annotators answer by a coin, or one side more often than the other;
- *mix*: categories in which the model was wrong before are asked more often;
- *calibration*: the stated log odds are stretched, while they have visibly moved;
- *nothing*: as before.

The likelihood is averaged over a grid of the term's size (a marginal likelihood with a uniform
prior, Kass and Raftery 1995), so that an explanation with more freedom pays for it.
"""

from dataclasses import dataclass
from typing import Any, Literal, NamedTuple

import numpy as np
import numpy.typing as npt
import pandas as pd

Floats = npt.NDArray[np.float64]
Name = Literal["taste", "category", "newcomers", "carelessness", "mix", "calibration", "nothing"]

SHARES = np.linspace(0.05, 1.0, 20)  # of winners that turned
RISES = np.linspace(0.1, 2.5, 13)  # of the log odds of an error
SLOPES = np.array([0.2, 0.3, 0.4, 0.5, 0.6, 0.7, 0.8])  # of true over stated log odds
SIDES = np.array([0.05, 0.15, 0.85, 0.95])  # chances of the left, or the longer, answer
CARELESS_SHARES = np.array([0.02, 0.05, 0.1, 0.2, 0.4, 0.6])  # of the annotators
PERSON_SD, CATEGORY_SD, BIAS_SD = 0.25, 0.3, 0.3
CORRELATION = 0.35  # of the errors of two votes on one comparison
MOVED = 4.0  # standard errors by which the mean of the stated log odds has moved
LATE = 200  # votes by which a change may be dated too late
MOST_AFTER = 2000  # votes after the change that are read


class Explanation(NamedTuple):
    """One explanation: its probability, by how much it raises the error rate of the votes after the
    change (2.5 % to 97.5 %), and whom or what it names.
    """

    name: Name
    probability: float
    rise: tuple[float, float, float]
    subjects: tuple[str, ...] = ()


@dataclass(frozen=True)
class _Term:
    """Log likelihoods over nothing's for each size of the term, and the chances of an error."""

    log_ratios: Floats  # (k,)
    rises: Floats  # (k,) of the mean chance
    subjects: tuple[str, ...] = ()

    @property
    def log_evidence(self) -> float:
        return float(np.logaddexp.reduce(self.log_ratios) - np.log(len(self.log_ratios)))

    @property
    def rise(self) -> tuple[float, float, float]:
        """Median, 2.5 % and 97.5 %."""
        if not np.isfinite(self.log_ratios).any():
            return 0.0, 0.0, 0.0
        weights = np.exp(self.log_ratios - self.log_ratios.max())
        order = np.argsort(self.rises)
        below = np.cumsum(weights[order]) / weights.sum()
        low, middle, high = (
            float(self.rises[order][min(len(below) - 1, int(np.searchsorted(below, q)))])
            for q in (0.025, 0.5, 0.975)
        )
        return middle, low, high


def explain_change(
    votes: pd.DataFrame, reference: pd.DataFrame, change_seq: int
) -> tuple[Explanation, ...]:
    """All explanations of a change that began at `change_seq`, the likeliest first.

    Columns of both frames: seq, annotator_id, comparison_id, category, expected_error, error; where
    they are known also p, shown_left and longer ("a" or "b"). `reference` holds votes on held-out
    predictions of the same model.
    """
    rows = votes.sort_values("seq")
    after = rows[rows["seq"] >= change_seq].head(MOST_AFTER)
    # votes of the reference were cast before all others, whatever their numbers
    before = pd.concat([reference.assign(seq=-1), rows[rows["seq"] < change_seq]])
    changed = _Changed.of(before, after, change_seq - LATE)
    terms: dict[Name, _Term] = {
        "nothing": _Term(np.zeros(1), np.zeros(1)),
        "taste": changed.taste(),
        "category": changed.category(),
        "newcomers": changed.newcomers(),
        "carelessness": changed.carelessness(),
        "mix": changed.mix(),
        "calibration": changed.calibration(),
    }
    logs = np.array([term.log_evidence for term in terms.values()])
    chances = np.exp(logs - np.logaddexp.reduce(logs))
    found = [
        Explanation(name, float(chance), term.rise, term.subjects)
        for (name, term), chance in zip(terms.items(), chances, strict=True)
    ]
    return tuple(sorted(found, key=lambda each: -each.probability))


@dataclass(frozen=True)
class _Changed:
    """The votes after a change, with what earlier votes say of each."""

    before: pd.DataFrame
    after: pd.DataFrame
    since: int  # who votes from here on for the first time is new
    odds: Floats  # stated log odds of an error with the offsets of bias and annotator
    error: Floats
    weight: Floats

    @classmethod
    def of(cls, before: pd.DataFrame, after: pd.DataFrame, since: int) -> "_Changed":
        bias, people = _offsets(before, "annotator_id", PERSON_SD)
        own = after["annotator_id"].map(people).fillna(0.0).to_numpy(dtype=float)
        nth = after.groupby("comparison_id").cumcount().to_numpy() + 1
        return cls(
            before,
            after,
            since,
            _log_odds(after) + bias + own,
            after["error"].to_numpy(dtype=float),
            _effective(nth) - _effective(nth - 1),
        )

    @property
    def chance(self) -> Floats:
        return _expit(self.odds)

    def _gain(self, chance: Floats) -> Floats:
        """Log likelihoods of votes over nothing's; (…, n) gives (…, n)."""
        new, old = np.clip(chance, 1e-4, 1 - 1e-4), np.clip(self.chance, 1e-4, 1 - 1e-4)
        gain = self.error * np.log(new / old) + (1 - self.error) * np.log((1 - new) / (1 - old))
        return np.asarray(self.weight * gain)

    def _term(self, chance: Floats, subjects: tuple[str, ...] = ()) -> _Term:
        rises = (chance - self.chance).mean(axis=-1)
        return _Term(self._gain(chance).sum(axis=-1), rises, subjects)

    def _turned(self) -> Floats:
        """Chances where a share of the winners turned, (shares, n)."""
        return np.asarray(self.chance + SHARES[:, None] * (1 - 2 * self.chance))

    def taste(self) -> _Term:
        risen = _expit(self.odds + RISES[:, None])
        return self._term(np.concatenate([self._turned(), risen]))

    def category(self) -> _Term:
        code, names = pd.factorize(self.after["category"])
        if len(names) < 2:
            return _impossible()
        turned = self._turned()
        gains = self._gain(turned)
        sums = np.stack([_sum_by(code, each, len(names)) for each in gains])
        rises = turned - self.chance
        risen = np.stack([_sum_by(code, each, len(names)) for each in rises])
        top = int(np.logaddexp.reduce(sums, axis=0).argmax())
        return _Term(sums.ravel(), risen.ravel() / len(code), (str(names[top]),))

    def newcomers(self) -> _Term:
        known = set(self.before["annotator_id"][self.before["seq"] < self.since])
        is_new = ~self.after["annotator_id"].isin(known).to_numpy()
        if not is_new.any() or is_new.all():
            return _impossible()
        names = self.after["annotator_id"][is_new].unique()
        return self._term(
            np.where(is_new, self._turned(), self.chance), tuple(str(name) for name in names)
        )

    def carelessness(self) -> _Term:
        code, names = pd.factorize(self.after["annotator_id"])
        kinds: list[Floats] = [np.full(len(code), 0.5)]
        for column in ("shown_left", "longer"):
            if column in self.after.columns and "p" in self.after.columns:
                is_predicted = (self.after[column] == "a") == (self.after["p"] > 0.5)
                kinds += [np.where(is_predicted, 1 - q, q) for q in SIDES]
        gains = self._gain(np.stack(kinds))
        by_person = np.stack([_sum_by(code, each, len(names)) for each in gains])
        # half for the coin, half for all one-sided answers
        prior = np.log(np.r_[0.5, np.full(len(kinds) - 1, 0.5 / max(1, len(kinds) - 1))])
        ratio = np.logaddexp.reduce(by_person + prior[:, None], axis=0)
        share = CARELESS_SHARES[:, None]
        logs = np.logaddexp(np.log1p(-share), np.log(share) + ratio)
        weights = np.exp(logs.sum(axis=1) - logs.sum(axis=1).max())
        careless = np.exp(np.log(share) + ratio - logs)
        mean = (weights[:, None] * careless).sum(axis=0) / weights.sum()
        rise = _sum_by(code, 0.5 - self.chance, len(names))
        return _Term(
            logs.sum(axis=1),
            careless @ rise / len(code),
            tuple(str(names[i]) for i in np.argsort(-mean) if mean[i] > 0.9),
        )

    def mix(self) -> _Term:
        _, known = _offsets(self.before, "category", CATEGORY_SD)
        own = self.after["category"].map(known).fillna(0.0).to_numpy(dtype=float)
        return self._term(_expit(self.odds + own)[None, :])

    def calibration(self) -> _Term:
        old, new = _log_odds(self.before), _log_odds(self.after)
        error = np.sqrt(old.var() / max(1, len(old)) + new.var() / len(new))
        if len(old) < 2 or abs(new.mean() - old.mean()) < MOVED * error:
            return _impossible()
        shrunk = np.concatenate([SLOPES, 1 / SLOPES])
        return self._term(_expit(self.odds * shrunk[:, None]))


def _sum_by(code: Any, values: Floats, n: int) -> Floats:
    return np.asarray(np.bincount(code, values, minlength=n), dtype=float)


def _impossible() -> _Term:
    return _Term(np.full(1, -np.inf), np.zeros(1))


def _offsets(rows: pd.DataFrame, by: str, sd: float) -> tuple[float, dict[str, float]]:
    """The bias of the model in log odds, and by how much each group differs from it (ridge)."""
    if rows.empty:
        return 0.0, {}
    odds, error = _log_odds(rows), rows["error"].to_numpy(dtype=float)
    bias = 0.0
    for _ in range(5):
        p = _expit(odds + bias)
        bias += ((error - p).sum() - bias / BIAS_SD**2) / ((p * (1 - p)).sum() + 1 / BIAS_SD**2)
    p = _expit(odds + bias)
    sums = (
        pd.DataFrame({"excess": error - p, "information": p * (1 - p)})
        .groupby(rows[by].to_numpy())
        .sum()
    )
    shrunk: dict[Any, float] = (sums["excess"] / (sums["information"] + 1 / sd**2)).to_dict()
    return float(bias), shrunk


def _log_odds(rows: pd.DataFrame) -> Floats:
    chance = np.clip(rows["expected_error"].to_numpy(dtype=float), 1e-3, 1 - 1e-3)
    return np.asarray(np.log(chance / (1 - chance)))


def _effective(n: Any) -> Floats:
    return np.asarray(n / (1 + np.maximum(n - 1, 0) * CORRELATION))


def _expit(x: Any) -> Floats:
    return np.asarray(1 / (1 + np.exp(-x)))

"""Compares explanations of a change: each states the chance of an error of every vote after it.

The stated log odds of an error, with the bias of the model and of each annotator from earlier
votes, are the offset of every explanation; each adds one term:

- *taste*: everybody errs more (a constant in log odds, or a share of the winners turned);
- *category*: a share of one category's winners turned;
- *newcomers*: people without earlier votes prefer the other side in a share of comparisons;
- *carelessness*: some annotators answer by a coin, by the displayed side or by length;
- *mix*: categories in which the model was wrong before are asked more often;
- *calibration*: the stated log odds are stretched, while they have visibly moved;
- *nothing*: as before, all the time or again after a while.

The likelihood is averaged over a grid of the term's size (a marginal likelihood, Kass and Raftery
1995), so that an explanation with more freedom pays for it.
"""

from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import pandas as pd

from rlhf_pipeline.core.errors import NotEnoughData
from rlhf_pipeline.core.intervals import format_estimate, interval_of_share
from rlhf_pipeline.core.records import Cause, CauseName, ChangeCauses, DriftEvent, Interval
from rlhf_pipeline.watch.drift.sequential_test import CORRELATION, PERSON_SD, fit_bias
from rlhf_pipeline.watch.drift.stream import UNTESTED_ERROR, stated_odds

Floats = npt.NDArray[np.float64]

SHARES = np.linspace(0.05, 1.0, 20)  # of winners that turned
RISES = np.linspace(0.1, 2.5, 13)  # of the log odds of an error
SLOPES = np.array([0.2, 0.3, 0.4, 0.5, 0.6, 0.7, 0.8])  # of true over stated log odds
SIDES = (0.85, 0.95)  # chances of the answer that a one-sided annotator favours
CARELESS_SHARES = np.array([0.02, 0.05, 0.1, 0.2, 0.4, 0.6])  # of the annotators
CATEGORY_SD = 0.3
MOVED = 4.0  # standard errors by which the mean of the stated log odds has moved
LATE = 200  # votes by which a change may be dated too late
MOST_AFTER = 2000  # votes after the change that are read
OVER = 50  # votes since which a rise has to be over
# A rise that comes and goes begins or ends between two blocks of votes, with these chances: its
# lengths are of the order of 200 votes, the times between them of 500.
BLOCK, BEGINS, ENDS = 10, 0.02, 0.05
KNOWN_FROM = 100  # earlier votes from which it is known who is new
CAUSE_VOTES = 1500  # votes after a detection up to which its causes are found again
MAX_NAMED = 200  # annotators in evidence
CARELESS = 0.7  # probability from which an annotator is named
LIKELY = 0.2  # probability from which a second cause is named


def find_causes(
    votes: pd.DataFrame,
    change_seq: int,
    reference: pd.DataFrame | None = None,
    earlier_annotators: Collection[str] = (),
) -> ChangeCauses:
    """All explanations of the change at `change_seq`, the likeliest first.

    Columns of both frames: those of `stream.scan`, and where they are known p (stated probability
    of side a), shown_left and longer ("a" or "b"). `reference` holds votes on held-out predictions
    of the same model; `earlier_annotators` names further ones, who voted before its first vote.
    Raises NotEnoughData without votes from `change_seq` on.
    """
    rows = votes.sort_values("seq")
    if reference is None or reference.empty:  # as in `stream.scan`
        rows = rows.assign(expected_error=UNTESTED_ERROR)
    after = rows[rows["seq"] >= change_seq].head(MOST_AFTER)
    if after.empty:
        raise NotEnoughData(
            f"The {len(rows)} votes on the model end before the change at vote {change_seq}. Pass "
            "the votes after it too."
        )
    before = rows[rows["seq"] < change_seq]
    if reference is not None and len(reference):
        # cast before all others, whatever their numbers
        before = pd.concat([reference.assign(seq=-1), before])
    changed = _Changed.of(before, after, change_seq - LATE, earlier_annotators)
    terms: dict[CauseName, _Term] = {
        "taste": changed.taste(),
        "category": changed.category(),
        "newcomers": changed.newcomers(),
        "carelessness": changed.carelessness(),
        "mix": changed.mix(),
        "calibration": changed.calibration(),
        "nothing": changed.nothing(),
    }
    logs = np.array([term.log_evidence for term in terms.values()])
    chances = np.exp(logs - np.logaddexp.reduce(logs))
    causes = [
        Cause(
            name=name,
            probability=min(1.0, float(chance)),
            effect=term.effect(len(after)),
            evidence=dict(term.evidence),
        )
        for (name, term), chance in zip(terms.items(), chances, strict=True)
    ]
    causes.sort(key=lambda cause: -cause.probability)
    rise = changed.measure_rise()
    return ChangeCauses(
        change_seq=change_seq,
        until_seq=int(after["seq"].iloc[-1]),
        n_before=len(before),
        n_after=len(after),
        rise=rise,
        people=_count_people(after) / _count_people(before) if len(before) else 1.0,
        causes=tuple(causes),
        summary=_summarise(causes, rise),
    )


def examine(
    event: DriftEvent,
    votes: pd.DataFrame,
    reference: pd.DataFrame | None = None,
    earlier_annotators: Collection[str] = (),
) -> DriftEvent:
    """The event with the causes of its change in the votes known by now, at most CAUSE_VOTES after
    it. Replayed events and calibration tests start nothing that depends on a cause, and where a
    quarantine leaves out all votes since the change, the causes stay as they are.
    """
    if event.is_replayed or event.kind != "drift":
        return event
    rows = votes[votes["seq"] <= event.seq + CAUSE_VOTES]
    causes_before = read_causes(event)
    start = event.seq if event.change_seq is None else event.change_seq
    read_until = start - 1 if causes_before is None else causes_before.until_seq
    if not (rows["seq"] > read_until).any():
        return event
    causes = find_causes(rows, start, reference, earlier_annotators)
    return event.model_copy(
        update={"evidence": event.evidence | {"causes": causes.model_dump(mode="json")}}
    )


def read_causes(event: DriftEvent) -> ChangeCauses | None:
    """The causes stored with an event."""
    stored = event.evidence.get("causes")
    return None if stored is None else ChangeCauses.model_validate(stored)


@dataclass(frozen=True)
class _Term:
    """Log likelihoods over nothing's for each size of the term, and what it names."""

    log_ratios: Floats  # (k,)
    rises: Floats  # (k,) of the mean chance of an error
    evidence: Mapping[str, Any]
    log_prior: Floats | None = None  # (k,), of weights that add up to 1; else uniform

    @property
    def _logs(self) -> Floats:
        uniform = -np.log(len(self.log_ratios))
        return self.log_ratios + (uniform if self.log_prior is None else self.log_prior)

    @property
    def log_evidence(self) -> float:
        return float(np.logaddexp.reduce(self._logs))

    def effect(self, n: int) -> Interval:
        """Median, 2.5 % and 97.5 % of the rise, over `n` votes."""
        if not np.isfinite(self.log_ratios).any():
            return Interval(value=0.0, low=0.0, high=0.0, n=n)
        weights = np.exp(self._logs - self._logs.max())
        order = np.argsort(self.rises)
        below = np.cumsum(weights[order]) / weights.sum()
        low, middle, high = (
            float(self.rises[order][min(len(below) - 1, int(np.searchsorted(below, q)))])
            for q in (0.025, 0.5, 0.975)
        )
        return Interval(value=middle, low=low, high=high, n=n)


IMPOSSIBLE = _Term(np.full(1, -np.inf), np.zeros(1), {})


@dataclass(frozen=True)
class _Changed:
    """The votes after a change, with what earlier votes say of each."""

    before: pd.DataFrame
    after: pd.DataFrame
    is_new: npt.NDArray[np.bool_]  # (n,) by an annotator without earlier votes
    odds: Floats  # stated log odds of an error with the offsets of bias and annotator
    error: Floats
    weight: Floats

    @classmethod
    def of(
        cls,
        before: pd.DataFrame,
        after: pd.DataFrame,
        since: int,
        earlier_annotators: Collection[str],
    ) -> "_Changed":
        bias, people = _find_offsets(before, "annotator_id", PERSON_SD)
        own = after["annotator_id"].map(people).fillna(0.0).to_numpy(dtype=float)
        nth = after.groupby("comparison_id").cumcount().to_numpy() + 1
        voted = {*earlier_annotators, *before["annotator_id"][before["seq"] < since]}
        is_new = ~after["annotator_id"].isin(voted).to_numpy()
        if not earlier_annotators and len(before) < KNOWN_FROM:
            is_new[:] = False
        return cls(
            before,
            after,
            is_new,
            stated_odds(after) + bias + own,
            after["error"].to_numpy(dtype=float),
            _effective(nth) - _effective(nth - 1),
        )

    @property
    def chance(self) -> Floats:
        return _expit(self.odds)

    def measure_rise(self) -> Interval:
        """Of the error rate over what is expected, with Wilson's interval of the rate after."""
        rate = interval_of_share(float(self.error.mean()), len(self.error))
        expected = float(self.chance.mean())
        return Interval(
            value=rate.value - expected,
            low=rate.low - expected,
            high=rate.high - expected,
            n=len(self.error),
        )

    def _gain(self, chance: Floats) -> Floats:
        """Log likelihoods of votes over nothing's; (…, n) gives (…, n)."""
        new, old = np.clip(chance, 1e-4, 1 - 1e-4), np.clip(self.chance, 1e-4, 1 - 1e-4)
        gain = self.error * np.log(new / old) + (1 - self.error) * np.log((1 - new) / (1 - old))
        return np.asarray(self.weight * gain)

    def _term(self, chance: Floats, evidence: dict[str, Any]) -> _Term:
        rises = (chance - self.chance).mean(axis=-1)
        return _Term(self._gain(chance).sum(axis=-1), rises, evidence)

    def _turned(self) -> Floats:
        """Chances where a share of the winners turned, (shares, n)."""
        return np.asarray(self.chance + SHARES[:, None] * (1 - 2 * self.chance))

    def _compare(self, chosen: npt.NDArray[np.bool_]) -> dict[str, Any]:
        """What was expected of the chosen votes (n,), and what came."""
        return {
            "n_votes": int(chosen.sum()),
            "error_expected": _mean(self.chance[chosen]),
            "error_after": _mean(self.error[chosen]),
        }

    def _risen(self) -> Floats:
        """Chances where everybody errs more, (sizes, n)."""
        return np.concatenate([self._turned(), _expit(self.odds + RISES[:, None])])

    def taste(self) -> _Term:
        everything = np.ones(len(self.error), dtype=bool)
        return self._term(self._risen(), self._compare(everything))

    def nothing(self) -> _Term:
        """Half the prior for rises that come and go and are over since OVER votes: a chain of two
        states, read forwards in blocks of BLOCK votes.
        """
        gains = self._gain(self._risen())
        n_blocks = (gains.shape[-1] - OVER) // BLOCK
        if n_blocks < 1:
            return _Term(np.zeros(1), np.zeros(1), {})
        blocks = gains[:, : n_blocks * BLOCK].reshape(len(gains), n_blocks, BLOCK).sum(axis=-1)
        calm, risen = np.full((2, len(gains)), -np.log(2))
        for gain in blocks.T:
            calm, risen = (
                np.logaddexp(np.log1p(-BEGINS) + calm, np.log(ENDS) + risen),
                np.logaddexp(np.log(BEGINS) + calm, np.log1p(-ENDS) + risen) + gain,
            )
        log_prior = np.full(len(calm), -np.log(2 * len(calm)))
        zeros = np.zeros(1 + len(calm))
        return _Term(np.r_[0.0, calm], zeros, {}, np.r_[-np.log(2), log_prior])

    def category(self) -> _Term:
        code, names = pd.factorize(self.after["category"])
        if len(names) < 2:
            return IMPOSSIBLE
        turned = self._turned()
        gains, rises = self._gain(turned), turned - self.chance
        sums = np.stack([_sum_by(code, gain, len(names)) for gain in gains])
        risen = np.stack([_sum_by(code, rise, len(names)) for rise in rises])
        top = int(np.logaddexp.reduce(sums, axis=0).argmax())
        evidence = {"category": str(names[top])} | self._compare(code == top)
        return _Term(sums.ravel(), risen.ravel() / len(code), evidence)

    def newcomers(self) -> _Term:
        if not self.is_new.any() or self.is_new.all():
            return IMPOSSIBLE
        names = self.after["annotator_id"][self.is_new].unique()
        evidence = {
            "annotator_ids": [str(name) for name in names[:MAX_NAMED]],
            "n_annotators": len(names),
            "error_of_others": _mean(self.error[~self.is_new]),
        }
        chance = np.where(self.is_new, self._turned(), self.chance)
        return self._term(chance, evidence | self._compare(self.is_new))

    def carelessness(self) -> _Term:
        """All careless annotators answer in one way, or each in one of their own."""
        code, names = pd.factorize(self.after["annotator_id"])
        ways = [_sum_by(code, self._gain(np.full(len(code), 0.5)), len(names))]
        for chance in self._one_sided():  # (q, n)
            by_share = [
                _sum_by(code, self._gain(share_chance), len(names)) for share_chance in chance
            ]
            ways.append(np.logaddexp.reduce(by_share, axis=0) - np.log(len(SIDES)))
        if len(ways) > 1:
            ways.append(np.logaddexp.reduce(ways, axis=0) - np.log(len(ways)))
        share = CARELESS_SHARES[:, None]
        logs = np.stack([np.logaddexp(np.log1p(-share), np.log(share) + way) for way in ways])
        careless = np.exp(np.log(share) + np.stack(ways)[:, None] - logs)  # (ways, shares, people)
        # half for the coin, half for all others
        prior = np.r_[0.5, np.full(len(ways) - 1, 0.5 / max(1, len(ways) - 1))]
        log_prior = np.repeat(np.log(prior / prior.sum() / len(CARELESS_SHARES)), len(share))
        ratios = logs.sum(axis=-1).ravel()
        weights = np.exp(ratios + log_prior - (ratios + log_prior).max())
        flat = careless.reshape(len(ratios), -1)
        chances = weights @ flat / weights.sum()
        rise = _sum_by(code, 0.5 - self.chance, len(names))
        suspects = [i for i in np.argsort(-chances) if chances[i] > CARELESS]
        people = [
            {"annotator_id": str(names[i]), "probability": round(float(chances[i]), 3)}
            | self._compare(code == i)
            for i in suspects[:MAX_NAMED]
        ]
        evidence = {
            "annotator_ids": [person["annotator_id"] for person in people],
            "n_annotators": len(suspects),
            "n_active": len(names),
            "people": people,
        } | self._compare(np.isin(code, suspects))
        return _Term(ratios, flat @ rise / len(code), evidence, log_prior)

    def _one_sided(self) -> Iterator[Floats]:
        """Chances of an error (SIDES, n) of annotators who favour the left, the right, the longer,
        or the shorter answer.
        """
        for column in ("shown_left", "longer"):
            if column in self.after.columns and "p" in self.after.columns:
                side = self.after[column]
                is_error = (side == "a").to_numpy() != (self.after["p"] > 0.5).to_numpy()
                is_known = side.isin(["a", "b"]).to_numpy()
                if is_known.any():
                    for favoured in (is_error, ~is_error):
                        chances = [np.where(favoured, q, 1 - q) for q in SIDES]
                        yield np.where(is_known, chances, 0.5)

    def mix(self) -> _Term:
        _, offsets = _find_offsets(self.before, "category", CATEGORY_SD)
        own = self.after["category"].map(offsets).fillna(0.0).to_numpy(dtype=float)
        now = self.after["category"].value_counts(normalize=True)
        then = self.before["category"].value_counts(normalize=True)
        then = then.reindex(now.index, fill_value=0.0)
        top = (now - then).idxmax()
        evidence = {
            "category": str(top),
            "share_before": round(float(then[top]), 4),
            "share_after": round(float(now[top]), 4),
        }
        return self._term(_expit(self.odds + own)[None, :], evidence)

    def calibration(self) -> _Term:
        if len(self.before) < 2:
            return IMPOSSIBLE
        old, new = stated_odds(self.before), stated_odds(self.after)
        error = np.sqrt(old.var() / len(old) + new.var() / len(new))
        if abs(new.mean() - old.mean()) <= max(MOVED * error, 1e-9):
            return IMPOSSIBLE
        stretched = np.concatenate([SLOPES, 1 / SLOPES])
        chances = _expit(self.odds * stretched[:, None])
        evidence = {"stated_before": _mean(_expit(old)), "stated_after": _mean(_expit(new))}
        return self._term(chances, evidence | {"error_after": _mean(self.error)})


def _count_people(votes: pd.DataFrame) -> float:
    """The number of annotators who, casting equally many votes, would be as diverse: two votes are
    of one annotator with the chance 1 / number (Simpson 1949, without the bias of few votes).
    """
    counts = votes["annotator_id"].value_counts().to_numpy(dtype=float)
    n = len(votes)
    return float(n * (n - 1) / max(1.0, (counts * (counts - 1)).sum())) if n > 1 else 1.0


def _find_offsets(rows: pd.DataFrame, by: str, sd: float) -> tuple[float, dict[str, float]]:
    """The bias of the model in log odds, and by how much each group differs from it (ridge)."""
    if rows.empty:
        return 0.0, {}
    odds, error = stated_odds(rows), rows["error"].to_numpy(dtype=float)
    bias, _ = fit_bias(odds, error, np.ones(len(odds)))
    p = _expit(odds + bias)
    code, names = pd.factorize(rows[by])
    excess, information = (_sum_by(code, terms, len(names)) for terms in (error - p, p * (1 - p)))
    return bias, dict(zip(names, excess / (information + 1 / sd**2), strict=True))


def _summarise(causes: list[Cause], rise: Interval) -> str:
    """One sentence: the likeliest cause, and the second one if it is likely too."""
    first, second = causes[:2]
    text = f"Errors rose by {rise.value:+.2f} over what is stated: {_describe(first)}"
    text += f" (probability {format_estimate(first.probability)})"
    if second.probability >= LIKELY:
        text += f", or {_describe(second)} ({format_estimate(second.probability)})"
    return f"{text}."


def _describe(cause: Cause) -> str:
    e = cause.evidence
    if cause.name in ("nothing", "taste"):
        return "chance" if cause.name == "nothing" else "everybody's taste changed"
    if cause.name == "mix":
        shares = f"{e['share_before']:.0%} → {e['share_after']:.0%} of the votes"
        return f"the mix changed (category {e['category']}: {shares})"
    if cause.name == "calibration":
        return f"stated errors moved ({e['stated_before']:.2f} → {e['stated_after']:.2f})"
    errors = (
        "no votes"
        if e["error_after"] is None
        else (f"errors {e['error_after']:.2f} where {e['error_expected']:.2f} were expected")
    )
    if cause.name == "category":
        return f"the taste in category {e['category']} changed ({errors})"
    if cause.name == "newcomers":
        return f"{e['n_annotators']} newcomers have another taste ({errors})"
    if not e["n_annotators"]:
        return "some annotators are careless, none of them surely"
    return f"{e['n_annotators']} annotators are careless ({errors})"


def _mean(values: Floats) -> float | None:
    return round(float(values.mean()), 4) if len(values) else None


def _sum_by(code: Any, values: Floats, n: int) -> Floats:
    return np.asarray(np.bincount(code, values, minlength=n), dtype=float)


def _effective(n: Any) -> Floats:
    return np.asarray(n / (1 + np.maximum(n - 1, 0) * CORRELATION))


def _expit(x: Any) -> Floats:
    return np.asarray(1 / (1 + np.exp(-x)))

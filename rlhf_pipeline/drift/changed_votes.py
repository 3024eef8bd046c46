"""Describes the votes around a change by what is known about them from the votes before it."""

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import pandas as pd

from rlhf_pipeline.drift.base import Floats
from rlhf_pipeline.drift.expected_errors import HIGHEST, LOWEST, ExpectedErrors, stated_odds
from rlhf_pipeline.drift.stream import Level

Ints = npt.NDArray[np.int64]
Bools = npt.NDArray[np.bool_]

STRETCHES = (1.0, 0.5, 1.4, 1.8, 2.3, 3.0)  # of stated log odds; 1 is calibrated as before
LIKENESS = 0.3  # how much a further vote on a comparison repeats the first one
MIN_SPREAD = 0.2  # of the logarithms of times and of stated log odds
PRIOR_VOTES = 5  # weight of everybody in what is usual for one annotator or category
UNFAMILIAR = 0.15  # growth of the share of a policy's or source's votes that makes it new
UNKNOWN = ""  # a category or an annotator that is missing


@dataclass(frozen=True)
class ChangedVotes:
    """The votes around a change in vote order, (n,) each unless another unit is named."""

    error: Floats
    # errors without the rhythm of the week, by how much the stated log odds are stretched
    expected: dict[float, Floats]
    rhythm: Floats  # by how much the usual error rate of the vote's weekday and hour is higher
    category: Ints
    categories: tuple[str, ...]
    annotator: Ints
    annotators: tuple[str, ...]
    is_new: Bools  # by annotator: first vote at the change
    n_usual: Ints  # by annotator: votes before those around the change
    is_unfamiliar: Bools  # of a policy or source with a much larger share than before
    side_a: Floats  # 1 if side a was preferred, 0 if side b, NaN if unknown
    pace: Floats  # logarithm of the time taken over the annotator's usual time, or NaN
    pace_spread: float
    odds: Floats  # stated log odds of an error, or NaN
    usual_odds: Floats  # their mean for the vote's category before the change
    odds_spread: float
    n_before: Floats  # settled votes before the change, by category
    n_reference: int  # predictions that tell the level before the change beside them
    weight: Floats  # below 1 where votes on one comparison repeat each other

    @property
    def usual_error(self) -> Floats:
        """The expected errors with the rhythm of the week."""
        return self.add_rhythm(self.expected[1.0])

    def count_before(self, is_after: Bools) -> Ints:
        """Votes before the change, by annotator."""
        return self.n_usual + np.bincount(self.annotator[~is_after], minlength=len(self.n_usual))

    def add_rhythm(self, expected: Floats) -> Floats:
        return np.asarray(np.clip(expected + self.rhythm, LOWEST, HIGHEST), dtype=float)


def describe_votes(
    around: pd.DataFrame,
    settled: pd.DataFrame,
    usual: pd.DataFrame,
    expected: ExpectedErrors,
    *,
    knows_annotators: bool,
    reference: Level | None = None,
) -> ChangedVotes:
    """Describe the votes `around` the change by the model's `settled` votes before it, and by the
    `usual` annotators and times, those of other models included. The `reference` tells
    the level, and the stated log odds where there are too few settled votes.
    """
    category, categories = _number(around, "category")
    annotator, annotators = _number(around, "annotator_id")
    is_new = np.zeros(len(annotators), dtype=bool)
    if knows_annotators and "annotator_id" in usual.columns:
        is_new = ~np.isin(annotators, usual["annotator_id"].dropna().astype(str).unique())
        is_new &= np.array(annotators) != UNKNOWN
    pace, pace_spread = _paces(around, usual)
    odds = stated_odds(around)
    usual_odds, odds_spread = _usual_odds(around, settled, reference)
    return ChangedVotes(
        error=around["error"].to_numpy(dtype=float),
        expected={by: expected.predict(around, by) for by in STRETCHES},
        rhythm=around["rhythm"].to_numpy(dtype=float),
        category=category,
        categories=categories,
        annotator=annotator,
        annotators=annotators,
        is_new=is_new,
        n_usual=_count(usual, "annotator_id", annotators),
        is_unfamiliar=_find_unfamiliar(around, settled),
        side_a=_preferred_sides(around),
        pace=pace,
        pace_spread=pace_spread,
        odds=odds if np.isfinite(usual_odds).all() else np.full(len(odds), np.nan),
        usual_odds=usual_odds,
        odds_spread=odds_spread,
        n_before=_count(settled, "category", categories).astype(float),
        n_reference=reference.n if reference else 0,
        weight=_weights(around),
    )


def _number(rows: pd.DataFrame, column: str) -> tuple[Ints, tuple[str, ...]]:
    if column not in rows.columns:
        return np.zeros(len(rows), dtype=np.int64), (UNKNOWN,)
    names = rows[column].astype(object).where(rows[column].notna(), UNKNOWN).astype(str)
    found, index = np.unique(names.to_numpy(dtype=str), return_inverse=True)
    return np.asarray(index, dtype=np.int64), tuple(found.tolist())


def _find_unfamiliar(around: pd.DataFrame, settled: pd.DataFrame) -> Bools:
    found = np.zeros(len(around), dtype=bool)
    for by in ("policy_version", "source"):
        if by in around.columns and len(settled):
            early = settled[by].value_counts(normalize=True)
            late = around[by].value_counts(normalize=True)
            grown = late - early.reindex(late.index, fill_value=0.0) > UNFAMILIAR
            found |= around[by].isin(grown.index[grown]).to_numpy()
    return found


def _preferred_sides(rows: pd.DataFrame) -> Floats:
    """From the stated probability of side a and whether that was an error."""
    if "p" not in rows.columns:
        return np.full(len(rows), np.nan)
    p = rows["p"].to_numpy(dtype=float)
    prefers_a = (p > 0.5) != (rows["error"].to_numpy(dtype=float) > 0.5)
    return np.where(np.isfinite(p) & (p != 0.5), prefers_a, np.nan)


def _paces(around: pd.DataFrame, usual: pd.DataFrame) -> tuple[Floats, float]:
    """Logarithms of times taken over usual ones, and their deviation before the change."""
    needed = {"annotator_id", "duration_s"}
    if not needed <= set(around.columns) or not needed <= set(usual.columns):
        return np.full(len(around), np.nan), 1.0
    before = _log_times(usual)
    known = usual.assign(log_s=before)[np.isfinite(before) & usual["annotator_id"].notna()]
    if len(known) < PRIOR_VOTES:
        return np.full(len(around), np.nan), 1.0
    everybody = float(known["log_s"].median())
    by = known.groupby("annotator_id")["log_s"].agg(["mean", "size"])
    own = (by["mean"] * by["size"] + PRIOR_VOTES * everybody) / (by["size"] + PRIOR_VOTES)
    spread = float((known["log_s"] - known["annotator_id"].map(own)).std())
    taken = _log_times(around) - around["annotator_id"].map(own).fillna(everybody)
    return taken.to_numpy(dtype=float), max(spread, MIN_SPREAD)


def _log_times(rows: pd.DataFrame) -> "pd.Series[float]":
    times = rows["duration_s"].astype(float)
    return np.log(times.where(times > 0))


def _usual_odds(
    around: pd.DataFrame, settled: pd.DataFrame, reference: Level | None
) -> tuple[Floats, float]:
    """Mean stated log odds of each vote's category before the change (NaN if unknown), and the
    deviation from it.
    """
    odds = stated_odds(settled)
    known = np.isfinite(odds)
    if known.sum() < PRIOR_VOTES:
        known_odds = reference.stated_odds if reference else None
        mean, spread = known_odds or (np.nan, 1.0)
        return np.full(len(around), mean), max(spread, MIN_SPREAD)
    everybody = float(odds[known].mean())
    if "category" not in settled.columns:
        return np.full(len(around), everybody), max(float(odds[known].std()), MIN_SPREAD)
    rows = pd.DataFrame({"category": settled["category"].astype(str), "odds": odds})[known]
    by = rows.groupby("category")["odds"].agg(["mean", "size"])
    own = (by["mean"] * by["size"] + PRIOR_VOTES * everybody) / (by["size"] + PRIOR_VOTES)
    spread = float((rows["odds"] - rows["category"].map(own)).std())
    usual = around["category"].astype(str).map(own).fillna(everybody)
    return usual.to_numpy(dtype=float), max(spread, MIN_SPREAD)


def _count(rows: pd.DataFrame, column: str, names: tuple[str, ...]) -> Ints:
    """Rows of each name."""
    index, found = _number(rows, column)
    counts = dict(zip(found, np.bincount(index, minlength=len(found)).tolist(), strict=True))
    return np.array([counts.get(name, 0) for name in names], dtype=np.int64)


def _weights(rows: pd.DataFrame) -> Floats:
    if "comparison_id" not in rows.columns:
        return np.ones(len(rows))
    n = rows.groupby("comparison_id")["comparison_id"].transform("size").to_numpy(dtype=float)
    return np.asarray(1 / (1 + LIKENESS * (np.nan_to_num(n, nan=1.0) - 1)), dtype=float)

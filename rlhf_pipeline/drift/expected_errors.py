"""Predicts how often a model errs on each vote, learnt from its votes before a change."""

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import pandas as pd

from rlhf_pipeline.drift.base import Floats

# What a vote is about; a composition of any of these may change. Those absent are left out.
GROUPINGS = ("category", "policy_version", "source")
LOWEST, HIGHEST = 0.01, 0.99
# Standard deviations of a Gaussian prior: around the stated confidence, taken as it is
# (intercept 0, slope 1), and around no difference between groups.
INTERCEPT, SLOPE, GROUP = 2.0, 0.5, 0.5


@dataclass(frozen=True)
class ExpectedErrors:
    """A logistic regression of errors on the stated log odds of an error and on groups."""

    coefficients: Floats  # intercept, slope, one that is 1 where nothing is stated, then groups
    groups: tuple[tuple[str, str], ...]

    def predict(self, votes: pd.DataFrame, stretch: float = 1.0) -> Floats:
        """The expected error of each vote (n,), if stated log odds are `stretch` times what they
        were.
        """
        odds = _features(votes, self.groups, stretch) @ self.coefficients
        return np.asarray(np.clip(1 / (1 + np.exp(-odds)), LOWEST, HIGHEST), dtype=float)


def learn_expected_errors(votes: pd.DataFrame) -> ExpectedErrors:
    """Fit by Newton's method; without votes, the stated confidence is taken as it is."""
    groups = tuple(
        (by, name)
        for by in GROUPINGS
        if by in votes.columns
        for name in sorted(votes[by].dropna().astype(str).unique())
    )
    x = _features(votes, groups, 1.0)
    error = votes["error"].to_numpy(dtype=float)
    prior = np.array([0.0, 1.0, 0.0] + [0.0] * len(groups))
    precision = 1 / np.array([INTERCEPT, SLOPE, INTERCEPT] + [GROUP] * len(groups)) ** 2
    found = prior.copy()
    for _ in range(30):
        p = 1 / (1 + np.exp(-np.clip(x @ found, -30, 30)))
        gradient = x.T @ (error - p) - precision * (found - prior)
        curvature = (x * (p * (1 - p))[:, None]).T @ x + np.diag(precision)
        step = np.linalg.solve(curvature, gradient)
        found = found + np.clip(step, -1, 1)
        if np.abs(step).max() < 1e-8:
            break
    return ExpectedErrors(found, groups)


def expect_reference(error_rate: float, stated: tuple[float, float] | None) -> ExpectedErrors:
    """The stated confidence, shifted so that predictions with log odds of mean and deviation
    `stated` err at `error_rate` on average.
    """
    rate = float(np.clip(error_rate, LOWEST, HIGHEST))
    level = np.log(rate / (1 - rate))
    mean, spread = stated or (0.0, 0.0)
    # The mean of a logistic function of a normal variable (MacKay 1992).
    shift = float(level * np.sqrt(1 + np.pi * spread**2 / 8) - mean)
    return ExpectedErrors(np.array([shift, 1.0, level - shift]), ())


def stated_odds(votes: pd.DataFrame) -> Floats:
    """Stated log odds of an error (n,); NaN where none is stated."""
    if "expected_error" not in votes.columns:
        return np.full(len(votes), np.nan)
    stated = np.clip(votes["expected_error"].to_numpy(dtype=float), 0.001, 0.999)
    return np.asarray(np.log(stated / (1 - stated)), dtype=float)


def _features(
    votes: pd.DataFrame, groups: tuple[tuple[str, str], ...], stretch: float
) -> npt.NDArray[np.float64]:
    odds = stated_odds(votes)
    is_known = np.isfinite(odds)
    columns = [np.ones(len(votes)), np.where(is_known, odds, 0) / stretch, ~is_known]
    columns += [
        votes[by].astype(str).to_numpy() == name if by in votes.columns else np.zeros(len(votes))
        for by, name in groups
    ]
    return np.stack([np.asarray(column, dtype=float) for column in columns], axis=1)

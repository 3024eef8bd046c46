"""Estimates the parameters of simulated annotators from their votes."""

from collections.abc import Mapping

import numpy as np
import numpy.typing as npt
import pandas as pd
from scipy.optimize import minimize

from rlhf_pipeline.records import Choice, Record
from rlhf_pipeline.simulation.utilities import Taste, side_utilities

Floats = npt.NDArray[np.float64]


class RecoveredParameters(Record):
    """A pool's mean parameters, estimated from its votes."""

    noise: float
    position_bias: float
    fatigue: float
    tie_width: float
    n_votes: int


def recover_pool(
    votes: pd.DataFrame,
    comparisons: pd.DataFrame,
    references: Mapping[str, str | None],
    taste: Taste,
) -> RecoveredParameters:
    """Estimate noise, position bias, fatigue and tie width by maximum likelihood, from VOTES of one
    taste.

    A vote's place in its annotator's day is its rank by voted_at.
    """
    cast = (
        votes.sort_values(["voted_at", "seq"], kind="stable")
        if "seq" in votes
        else votes.sort_values("voted_at", kind="stable")
    )
    n_earlier = cast.groupby(
        [cast["annotator_id"], pd.to_datetime(cast["voted_at"], utc=True).dt.date]
    ).cumcount()
    cast = cast.assign(n_earlier=n_earlier)[cast["choice"].ne(Choice.SKIP)]
    u_a, u_b = side_utilities(comparisons, references, taste)
    differences = dict(zip(comparisons["comparison_id"], u_a - u_b, strict=True))
    delta = np.array([differences[c] for c in cast["comparison_id"]])
    sign = cast["choice"].map({Choice.A: 1, Choice.B: -1}).fillna(0).to_numpy(dtype=np.int64)
    return _maximum_likelihood(delta, sign, cast["n_earlier"].to_numpy(dtype=np.float64))


def _maximum_likelihood(
    delta: Floats, sign: npt.NDArray[np.int64], n_earlier: Floats
) -> RecoveredParameters:
    def negative_log_likelihood(x: Floats) -> float:
        log_noise, bias, fatigue, tie = x
        scale = np.exp(log_noise) * (1 + fatigue * n_earlier / 100)
        p_a, p_b = _sigmoid((delta + bias - tie) / scale), _sigmoid((-delta - bias - tie) / scale)
        p = np.select([sign == 1, sign == -1], [p_a, p_b], 1 - p_a - p_b)
        return float(-np.log(np.clip(p, 1e-12, None)).mean())

    fit = minimize(
        negative_log_likelihood,
        x0=np.array([0.0, 0.0, 0.1, 0.1]),
        method="L-BFGS-B",
        bounds=[(-5, 5), (-5, 5), (0, 10), (0, 5)],
    )
    log_noise, bias, fatigue, tie = (float(v) for v in fit.x)
    return RecoveredParameters(
        noise=float(np.exp(log_noise)),
        position_bias=bias,
        fatigue=fatigue,
        tie_width=tie,
        n_votes=len(delta),
    )


def _sigmoid(x: Floats) -> Floats:
    return np.asarray(0.5 * (1 + np.tanh(x / 2)), dtype=np.float64)

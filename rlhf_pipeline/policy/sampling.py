"""Which token comes next, drawn per row from the row's own seed. Knows logits; knows no model and no text.

A token is the argmax of log p / temperature + Gumbel noise (Maddison et al. 2014: the same distribution as sampling).
The noise of a row depends on its seed and step alone. Matrix products round differently in a batch of another shape, so a draw
closer to another outcome than that rounding is reported as undecided: the caller decides it on the row alone, and a batch
of one equals a batch of eight.
"""

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

Floats = npt.NDArray[np.float64]

LOGIT_TOLERANCE = 1e-3  # rounding moves logits of float32 models by about 1e-5
MASS_TOLERANCE = 1e-4


class RowNoise:
    """Gumbel noise for some rows, each from its own generator; greedy rows (temperature 0) get none."""

    def __init__(self, seeds: Sequence[int], temperatures: Floats, n_vocabulary: int) -> None:
        self._generators = [np.random.default_rng(seed) if t > 0 else None for seed, t in zip(seeds, temperatures, strict=True)]
        self._shape = n_vocabulary

    def draw(self, rows: Sequence[int]) -> Floats:
        """The next noise of `rows`, (len(rows), n_vocabulary); each call advances these rows by one step."""
        generators = [self._generators[row] for row in rows]
        return np.stack([np.zeros(self._shape) if g is None else g.gumbel(size=self._shape) for g in generators])


def choose_tokens(logits: Floats, temperature: Floats, top_p: Floats, noise: Floats) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.bool_]]:
    """Tokens (rows,) and whether each is decided beyond rounding (rows,), for logits and noise (rows, n_vocabulary).

    Temperature 0 is greedy and ignores top_p; top_p keeps the smallest set of likeliest tokens with at least that mass.
    """
    greedy = temperature <= 0
    scale = np.where(greedy, 1.0, temperature)[:, None]
    log_p = logits / scale
    log_p = log_p - np.logaddexp.reduce(log_p, axis=1, keepdims=True)
    kept, wide, unsure_edge, edge = _nucleus(np.exp(log_p), np.where(greedy, 1.0, top_p))
    noisy = log_p + noise
    tokens = np.where(kept, noisy, -np.inf).argmax(axis=1)
    among_wide = np.where(wide, noisy, -np.inf)
    winner = among_wide.argmax(axis=1)
    rows = np.arange(len(logits))
    gap = among_wide[rows, winner] - np.partition(among_wide, -2, axis=1)[:, -2]
    near_tie = gap * scale[:, 0] < LOGIT_TOLERANCE
    at_edge = unsure_edge & (np.exp(log_p[rows, winner]) <= edge * (1 + LOGIT_TOLERANCE))
    return tokens, ~(near_tie | at_edge)


def _nucleus(p: Floats, top_p: Floats) -> tuple[npt.NDArray[np.bool_], npt.NDArray[np.bool_], npt.NDArray[np.bool_], Floats]:
    """Tokens kept, those and the next likeliest one, whether rounding could move the edge, the edge's probability."""
    everything = np.ones_like(p, dtype=bool)
    cut = np.flatnonzero(top_p < 1)
    kept, wide = everything, everything.copy()
    unsure, edge = np.zeros(len(p), dtype=bool), np.zeros(len(p))
    if len(cut) == 0:
        return kept, wide, unsure, edge
    order = np.argsort(-p[cut], axis=1, kind="stable")
    sorted_p = np.take_along_axis(p[cut], order, axis=1)
    before = np.cumsum(sorted_p, axis=1) - sorted_p
    target = top_p[cut, None]
    n_kept = np.maximum((before < target).sum(axis=1), 1)
    rank = np.argsort(order, axis=1, kind="stable")
    kept = kept.copy()
    kept[cut] = rank < n_kept[:, None]
    wide[cut] = rank <= n_kept[:, None]
    last = np.arange(len(cut)), n_kept - 1
    following = np.arange(len(cut)), np.minimum(n_kept, p.shape[1] - 1)
    edge[cut] = sorted_p[last]
    near_target = np.minimum(np.abs(before[last] - target[:, 0]), np.abs(before[following] - target[:, 0])) < MASS_TOLERANCE
    equal = sorted_p[last] - sorted_p[following] < LOGIT_TOLERANCE * sorted_p[last]
    unsure[cut] = near_target | equal
    return kept, wide, unsure, edge

"""Samples the next token of each row from the row's own seed.

A token is the argmax of log p / temperature + Gumbel noise (Maddison et al. 2014: the same
distribution as sampling). The noise of a row depends on its seed and step alone. Matrix products
round differently in a batch of another shape, so a draw closer to another outcome than that
rounding is reported as undecided: the caller decides it on the row alone, and a batch of one equals
a batch of eight.
"""

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

Floats = npt.NDArray[np.float64]

LOGIT_TOLERANCE = 1e-3  # rounding moves logits of float32 models by about 1e-5
MASS_TOLERANCE = 1e-4


class RowNoise:
    """Gumbel noise for some rows, each from its own generator; greedy rows (temperature 0) get
    none.
    """

    def __init__(self, seeds: Sequence[int], temperatures: Floats, n_vocabulary: int) -> None:
        self._generators = [
            np.random.default_rng(seed) if t > 0 else None
            for seed, t in zip(seeds, temperatures, strict=True)
        ]
        self._shape = n_vocabulary

    def draw(self, rows: Sequence[int]) -> Floats:
        """The next noise of `rows`, (len(rows), n_vocabulary), or zeros (len(rows), 1) if all are
        greedy; each call advances these rows by one step.
        """
        generators = [self._generators[row] for row in rows]
        if not any(generators):
            return np.zeros((len(rows), 1))
        return np.stack(
            [np.zeros(self._shape) if g is None else g.gumbel(size=self._shape) for g in generators]
        )


def choose_tokens(
    logits: Floats, temperature: Floats, top_p: Floats, noise: Floats
) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.bool_]]:
    """Choose tokens (rows,), and report whether each is decided beyond rounding (rows,), for logits
    and noise (rows, n_vocabulary or 1).

    Temperature 0 is greedy and ignores top_p; top_p keeps the smallest set of the likeliest tokens
    with at least that mass.
    """
    greedy = temperature <= 0
    scale = np.where(greedy, 1.0, temperature)[:, None]
    noisy = logits / scale + noise  # log p up to a constant per row, which changes no argmax
    tokens = noisy.argmax(axis=1)
    winner, winner_p = tokens.copy(), np.ones(len(logits))
    unsure_edge, edge = np.zeros(len(logits), dtype=bool), np.zeros(len(logits))
    cut = np.flatnonzero(~greedy & (top_p < 1))
    if len(cut):  # only these rows need probabilities
        log_p = logits[cut] / scale[cut]
        log_p -= np.logaddexp.reduce(log_p, axis=1, keepdims=True)
        kept, wide, unsure_edge[cut], edge[cut] = _nucleus(np.exp(log_p), top_p[cut])
        tokens[cut] = np.where(kept, noisy[cut], -np.inf).argmax(axis=1)
        noisy[cut] = np.where(wide, noisy[cut], -np.inf)
        winner[cut] = noisy[cut].argmax(axis=1)
        winner_p[cut] = np.exp(log_p[np.arange(len(cut)), winner[cut]])
    rows = np.arange(len(logits))
    best = noisy[rows, winner]
    noisy[rows, winner] = -np.inf
    near_tie = (best - noisy.max(axis=1)) * scale[:, 0] < LOGIT_TOLERANCE
    at_edge = unsure_edge & (winner_p <= edge * (1 + LOGIT_TOLERANCE))
    return tokens, ~(near_tie | at_edge)


def _nucleus(
    p: Floats, top_p: Floats
) -> tuple[npt.NDArray[np.bool_], npt.NDArray[np.bool_], npt.NDArray[np.bool_], Floats]:
    """For rows cut by top_p: the kept tokens, the kept tokens plus the next likeliest, whether
    rounding could move the edge, and the edge's probability.
    """
    order = np.argsort(-p, axis=1, kind="stable")
    sorted_p = np.take_along_axis(p, order, axis=1)
    before = np.cumsum(sorted_p, axis=1) - sorted_p
    target = top_p[:, None]
    n_kept = np.maximum((before < target).sum(axis=1), 1)
    rank = np.argsort(order, axis=1, kind="stable")
    kept, wide = rank < n_kept[:, None], rank <= n_kept[:, None]
    last = np.arange(len(p)), n_kept - 1
    following = np.arange(len(p)), np.minimum(n_kept, p.shape[1] - 1)
    edge: Floats = sorted_p[last]
    near_target = (
        np.minimum(np.abs(before[last] - target[:, 0]), np.abs(before[following] - target[:, 0]))
        < MASS_TOLERANCE
    )
    equal = sorted_p[last] - sorted_p[following] < LOGIT_TOLERANCE * sorted_p[last]
    return kept, wide, near_target | equal, edge

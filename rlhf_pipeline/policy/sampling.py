"""Samples the next token of each row from the row's own seed.

A token is the argmax of log p / temperature + Gumbel noise (Maddison et al. 2014: the same
distribution as sampling). The noise of a row depends on its seed and step alone. Matrix products
round differently in a batch of another shape, so a draw closer to another outcome than that
rounding is reported as undecided: the caller decides it on the row alone, and a batch of one equals
a batch of eight.

Everything is computed in float64 on the device that holds the logits.
"""

from collections.abc import Sequence
from typing import Any, Protocol

import numpy as np

LOGIT_TOLERANCE = 1e-3  # rounding moves logits of float32 models by about 1e-5
MASS_TOLERANCE = 1e-4


class Noise(Protocol):
    """Gumbel noise for some rows, each from its own stream; greedy rows (temperature 0) get
    none.
    """

    def draw(self, rows: Sequence[int]) -> Any:
        """The next noise of `rows`, (len(rows), n_vocabulary), or zeros (len(rows), 1) if all are
        greedy; each call advances these rows by one step.
        """


def open_noise(
    seeds: Sequence[int], temperatures: Sequence[float], n_vocabulary: int, device: Any = "cpu"
) -> Noise:
    """Noise on `device`. The CPU draws from NumPy's generators, which the texts of existing homes
    came from; a GPU would wait for them, so it computes noise of its own.
    """
    kind = CPUNoise if str(device) == "cpu" else DeviceNoise
    return kind(seeds, temperatures, n_vocabulary, device)


class CPUNoise:
    """Noise from one NumPy generator per row."""

    def __init__(
        self, seeds: Sequence[int], temperatures: Sequence[float], n_vocabulary: int, device: Any
    ) -> None:
        self._generators = [
            np.random.default_rng(seed) if t > 0 else None
            for seed, t in zip(seeds, temperatures, strict=True)
        ]
        self._shape = n_vocabulary

    def draw(self, rows: Sequence[int]) -> Any:
        import torch

        generators = [self._generators[row] for row in rows]
        if not any(generators):
            return torch.zeros((len(rows), 1), dtype=torch.float64)
        return torch.from_numpy(
            np.stack(
                [
                    np.zeros(self._shape) if g is None else g.gumbel(size=self._shape)
                    for g in generators
                ]
            )
        )


class DeviceNoise:
    """Noise as a hash (splitmix64) of seed, step and token, for all rows in one operation."""

    def __init__(
        self, seeds: Sequence[int], temperatures: Sequence[float], n_vocabulary: int, device: Any
    ) -> None:
        import torch

        self._seeds = _mix(torch.tensor([s % 2**62 for s in seeds], device=device))
        self._drawn = torch.tensor([t > 0 for t in temperatures], device=device)
        self._steps = torch.zeros(len(seeds), dtype=torch.int64, device=device)
        self._tokens = torch.arange(n_vocabulary, device=device)

    def draw(self, rows: Sequence[int]) -> Any:
        import torch

        index = torch.tensor(rows, device=self._seeds.device)
        self._steps[index] += 1
        streams = _mix(self._seeds[index] + self._steps[index])
        # the upper 52 bits, as a number between 0 and 1 without its ends
        bits = (_mix(streams[:, None] + self._tokens) >> 12) & (2**52 - 1)
        noise = -((bits.double() + 0.5) / 2**52).log().neg().log()
        return noise * self._drawn[index, None]


def _mix(numbers: Any) -> Any:
    """The finaliser of splitmix64 (Steele et al. 2014) on int64, whose products wrap around."""
    mixed = numbers * -0x61C8864680B583EB
    for shift, factor in ((30, -0x40A7B892E31B1A47), (27, -0x6B2FB644ECCEEE15)):
        # a right shift copies the sign, so its upper bits are cleared
        mixed = (mixed ^ ((mixed >> shift) & (2 ** (64 - shift) - 1))) * factor
    return mixed ^ ((mixed >> 31) & (2**33 - 1))


def choose_tokens(logits: Any, temperature: Any, top_p: Any, noise: Any) -> tuple[Any, Any]:
    """Choose tokens (rows,), and report whether each is decided beyond rounding (rows,), for logits
    and noise (rows, n_vocabulary or 1): tensors of float64 on one device.

    Temperature 0 is greedy and ignores top_p; top_p keeps the smallest set of the likeliest tokens
    with at least that mass.
    """
    import torch

    greedy = temperature <= 0
    scale = torch.where(greedy, 1.0, temperature)[:, None]
    noisy = logits / scale + noise  # log p up to a constant per row, which changes no argmax
    tokens = noisy.argmax(dim=1)
    winner, winner_p = tokens.clone(), torch.ones_like(temperature)
    unsure_edge, edge = torch.zeros_like(greedy), torch.zeros_like(temperature)
    cut = (~greedy & (top_p < 1)).nonzero()[:, 0]
    if len(cut):  # only these rows need probabilities
        p = (logits[cut] / scale[cut]).softmax(dim=1)
        kept, wide, unsure_edge[cut], edge[cut] = _nucleus(p, top_p[cut])
        tokens[cut] = noisy[cut].masked_fill(~kept, -torch.inf).argmax(dim=1)
        noisy[cut] = noisy[cut].masked_fill(~wide, -torch.inf)
        winner[cut] = noisy[cut].argmax(dim=1)
        winner_p[cut] = p.gather(1, winner[cut, None])[:, 0]
    best = noisy.gather(1, winner[:, None])[:, 0]
    noisy.scatter_(1, winner[:, None], -torch.inf)
    near_tie = (best - noisy.amax(dim=1)) * scale[:, 0] < LOGIT_TOLERANCE
    at_edge = unsure_edge & (winner_p <= edge * (1 + LOGIT_TOLERANCE))
    return tokens, ~(near_tie | at_edge)


def _nucleus(p: Any, top_p: Any) -> tuple[Any, Any, Any, Any]:
    """For rows cut by top_p: the kept tokens, the kept tokens plus the next likeliest, whether
    rounding could move the edge, and the edge's probability.
    """
    import torch

    sorted_p, order = p.sort(dim=1, descending=True, stable=True)
    before = sorted_p.cumsum(dim=1) - sorted_p
    target = top_p[:, None]
    n_kept = (before < target).sum(dim=1, keepdim=True).clamp(min=1)
    places = torch.arange(p.shape[1], device=p.device).expand_as(order)
    rank = torch.empty_like(order).scatter_(1, order, places)  # the inverse permutation
    last, following = n_kept - 1, n_kept.clamp(max=p.shape[1] - 1)
    edge, next_p = sorted_p.gather(1, last), sorted_p.gather(1, following)
    near_target = (before.gather(1, last) - target).abs().minimum(
        (before.gather(1, following) - target).abs()
    ) < MASS_TOLERANCE
    equal = edge - next_p < LOGIT_TOLERANCE * edge
    return rank < n_kept, rank <= n_kept, (near_target | equal)[:, 0], edge[:, 0]

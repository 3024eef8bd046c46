"""Samples the next token of each row from the row's own seed.

A token is the argmax of log p / temperature + Gumbel noise (Maddison et al. 2014: the same
distribution as sampling). The noise of a row depends on its seed and step alone, so a batch of one
equals a batch of eight, up to the rounding of matrix products.

Everything is computed in float64 on the device that holds the logits.
"""

from collections.abc import Sequence
from typing import Any, Protocol

import numpy as np


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


def choose_tokens(logits: Any, temperature: Any, top_p: Any, noise: Any) -> Any:
    """Choose tokens (rows,) for logits and noise (rows, n_vocabulary or 1): tensors of float64 on
    one device.

    Temperature 0 is greedy and ignores top_p; top_p keeps the smallest set of the likeliest tokens
    with at least that mass.
    """
    import torch

    greedy = temperature <= 0
    scale = torch.where(greedy, 1.0, temperature)[:, None]
    noisy = logits / scale + noise  # log p up to a constant per row, which changes no argmax
    cut = (~greedy & (top_p < 1)).nonzero()[:, 0]
    if len(cut):  # only these rows need probabilities
        nucleus = _find_nucleus((logits[cut] / scale[cut]).softmax(dim=1), top_p[cut])
        noisy[cut] = noisy[cut].masked_fill(~nucleus, -torch.inf)
    return noisy.argmax(dim=1)


def _find_nucleus(p: Any, top_p: Any) -> Any:
    """Which tokens `top_p` keeps, (rows, n_vocabulary)."""
    import torch

    sorted_p, order = p.sort(dim=1, descending=True, stable=True)
    before = sorted_p.cumsum(dim=1) - sorted_p
    n_kept = (before < top_p[:, None]).sum(dim=1, keepdim=True).clamp(min=1)
    places = torch.arange(p.shape[1], device=p.device).expand_as(order)
    rank = torch.empty_like(order).scatter_(1, order, places)  # the inverse permutation
    return rank < n_kept

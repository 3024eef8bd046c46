"""Names how a reading of what serves differs from what was frozen of the judged version.

Other tokens mean another chat template, end token or context; equal tokens with other log
probabilities mean other weights; equal ones with another first token of the answer, a prefix cache
that other weights filled.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from rlhf_pipeline.generate.completions.served_readings import ServedReading
from rlhf_pipeline.generate.policy.frozen_exchanges import FrozenExchange, FrozenPolicy

TEMPLATE, END, CONTEXT = "other chat template", "other end token", "truncated context"
WEIGHTS, CACHE, EITHER = "other weights", "stale prefix cache", "other template or weights"
# nats: median difference below which another precision, another engine or int8 weights stay
PRECISION = 0.03
# times: a prefix cache changes first tokens by more than precision does, whose medians of 16 differ
CACHED = 4.0
Pair = tuple[FrozenExchange, ServedReading]


@dataclass(frozen=True)
class Difference:
    """How one conversation differs, `name` None if it does not; `size` is the largest difference
    of a token, in nats.
    """

    name: str | None = None
    detail: str = ""
    size: float = 0.0


def find_difference(
    exchange: FrozenExchange, reading: ServedReading, tolerance: float
) -> Difference:
    if reading.prompt_ids is not None:
        named = _compare_tokens(exchange, reading, tuple(reading.prompt_ids))
        if named is not None:
            return named
    if reading.ends is False:
        return Difference(END, f"answers do not end at token {exchange.answer_ids[-1]}")
    size = 0.0
    if reading.log_p is not None:
        size = float(np.abs(reading.log_p - exchange.log_p).max())
        if size > tolerance:
            return Difference(WEIGHTS, _describe(size, tolerance), size)
    if reading.first_tokens is not None:
        of_first = _compare_first(exchange, reading.first_tokens)
        size = max(size, of_first)
        if of_first > tolerance:
            name = EITHER if reading.log_p is None else CACHE
            return Difference(name, _describe(of_first, tolerance), size)
    return Difference(size=size)


def find_median_difference(pairs: Sequence[Pair], tolerance: float) -> Difference:
    """Of a server in another precision, whose single tokens differ much: the medians count. Its
    prefix cache is compared with its own reading without one, of the same precision.
    """
    size, of_first = measure_medians(pairs)
    of_cache, of_precision = _measure_cache(pairs)
    if size is not None and size > tolerance:
        return Difference(WEIGHTS, _describe(size, tolerance, "the median difference is"), size)
    if of_first is not None and of_first > tolerance:
        detail = _describe(of_first, tolerance, "the median difference of first tokens is")
        return Difference(EITHER if size is None else CACHE, detail, of_first)
    if of_cache > max(CACHED * of_precision, tolerance / CACHED):
        detail = f"the median difference of first tokens is {of_cache:.2g} nats, without the cache "
        return Difference(CACHE, f"{detail}{of_precision:.2g}", of_cache)
    return Difference(size=max(size or 0.0, of_first or 0.0))


def measure_medians(pairs: Iterable[Pair]) -> tuple[float | None, float | None]:
    """Median differences in nats of given tokens, and of the first ones of answers; None where they
    were not read.
    """
    gaps, of_first = [], []
    for exchange, reading in pairs:
        if reading.log_p is not None:
            gaps.append(np.abs(reading.log_p - exchange.log_p))
        if reading.first_tokens is not None:
            of_first.append(_compare_first(exchange, reading.first_tokens))
    return (
        float(np.median(np.concatenate(gaps))) if gaps else None,
        float(np.median(of_first)) if of_first else None,
    )


def is_nearer(frozen: FrozenPolicy, pairs: Sequence[Pair]) -> bool:
    """Whether the log probabilities of the prompts are those of this version rather than of the
    judged one, by half of its median difference.
    """
    others = {exchange.prompt_ids: exchange for exchange in frozen.exchanges}
    to_other, to_judged = [], []
    for exchange, reading in pairs:
        other = others.get(exchange.prompt_ids)
        if other is not None and reading.log_p is not None:
            n = len(exchange.prompt_ids) - 1  # the answers differ
            to_other.append(np.abs(reading.log_p[:n] - other.log_p[:n]))
            to_judged.append(np.abs(reading.log_p[:n] - exchange.log_p[:n]))
    if not to_other:
        return False
    return bool(np.median(np.concatenate(to_other)) < np.median(np.concatenate(to_judged)) / 2)


def _compare_tokens(
    exchange: FrozenExchange, reading: ServedReading, observed: tuple[int, ...]
) -> Difference | None:
    frozen_ids, n = exchange.prompt_ids, len(observed)
    if reading.context_length is not None and len(exchange.ids) >= reading.context_length:
        return Difference(
            CONTEXT,
            f"{reading.context_length} tokens, of which the conversation has {len(frozen_ids)}",
        )
    if observed == frozen_ids:
        return None
    if not observed:
        return Difference(TEMPLATE, "it refuses a conversation")
    if n < len(frozen_ids) and observed in (frozen_ids[:n], frozen_ids[-n:]):
        return Difference(CONTEXT, f"{n} of {len(frozen_ids)} tokens of the conversation are read")
    at = next(
        (i for i, pair in enumerate(zip(observed, frozen_ids, strict=False)) if len({*pair}) > 1), n
    )
    return Difference(TEMPLATE, f"tokens of the conversation differ from number {at + 1} on")


def _measure_cache(pairs: Iterable[Pair]) -> tuple[float, float]:
    """Median differences in nats of likeliest first tokens, given as such and as tokens of the
    exchange: of both, and of the latter from the judged version. Zeros where they were not read.
    """
    gaps = [(0.0, 0.0)]
    for exchange, reading in pairs:
        at, token = len(exchange.prompt_ids) - 1, exchange.answer_ids[0]
        first = (reading.first_tokens or {}).get(token)
        if reading.log_p is not None and first is not None:
            uncached = reading.log_p[at]
            gaps.append((abs(first - uncached), abs(uncached - exchange.log_p[at])))
    of_cache, of_precision = np.median(gaps[1:] or gaps, axis=0)
    return float(of_cache), float(of_precision)


def _compare_first(exchange: FrozenExchange, observed: Mapping[Any, float]) -> float:
    """The largest difference in nats; at least that to the last frozen one, of other tokens."""
    by_id: dict[Any, float] = {i: log_p for i, (_, log_p) in exchange.first_tokens.items()}
    by_text = {text: log_p for text, log_p in reversed(exchange.first_tokens.values())}
    lowest = min(by_id.values())
    return max(
        abs(log_p - known)
        if (known := by_id.get(token, by_text.get(token))) is not None
        else max(log_p - lowest, 0.0)
        for token, log_p in observed.items()
    )


def _describe(
    size: float, tolerance: float, what: str = "a token's log probability differs by"
) -> str:
    return f"{what} {size:.2g} nats (tolerance {tolerance:.2g})"

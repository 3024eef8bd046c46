"""Divides rows into batches whose logits fit in memory."""

from collections.abc import Sequence
from typing import Any

MAX_LOGITS = 20_000_000  # 80 MB in float32; a row may have more by itself


def batch_by_logits(
    lengths: Sequence[int], model: Any, *, max_logits: int = MAX_LOGITS, max_rows: int | None = None
) -> list[list[int]]:
    """Row numbers in batches of similar length, at most `max_logits` logits of the model and
    `max_rows` rows each.
    """
    n_vocabulary = model.config.get_text_config().vocab_size
    batches: list[list[int]] = [[]]
    for row in sorted(range(len(lengths)), key=lambda i: lengths[i]):
        n = len(batches[-1]) + 1
        is_full = n * lengths[row] * n_vocabulary > max_logits or n > (max_rows or n)
        if batches[-1] and is_full:
            batches.append([])
        batches[-1].append(row)
    return [batch for batch in batches if batch]

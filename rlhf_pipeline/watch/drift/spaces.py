"""Takes the sample of every space from a window, and describes how two samples differ."""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from rlhf_pipeline.watch.drift.base import Floats
from rlhf_pipeline.watch.drift.mixes import SPACES as MIXES
from rlhf_pipeline.watch.drift.mixes import largest_changes
from rlhf_pipeline.watch.drift.reference import LEFT_OUT, MAX_TEXTS, Window
from rlhf_pipeline.watch.drift.words import shares_of_buckets

# Numbers or embeddings by row, hashed words by text, or rows by label.
Sample = Floats | Sequence[str] | Mapping[str, int]

TEXTS = {"prompt_text": "prompt_words", "completion_text": "completion_words"}
MAX_WORDS = 3  # named in a report
MIN_RISE = 0.05  # of a word's share of the texts, to be named


def take_sample(space: str, window: Window | None) -> Sample:
    """The values of a space: one per prompt, of errors one per comparison."""
    if window is None:
        return np.zeros(0)
    if space == "embeddings":
        return window.embeddings
    if space in MIXES:
        return window.mixes.get(space, {})
    if space == "errors":
        return np.asarray(window.rows["error"], dtype=float)
    rows = window.one_row_per_prompt()
    if space in TEXTS:
        texts: list[str] = rows[TEXTS[space]].dropna().tolist()
        return texts[:MAX_TEXTS]  # a test compares all pairs
    if space == "confidence":
        p = rows["p"].to_numpy(dtype=float)
        confidence: Floats = np.maximum(p, 1 - p)
        return confidence
    if space == "scores":
        # all missing: a window made without scores; one missing: a fault, which the test refuses
        scores = np.asarray(rows["score"], dtype=float)
        return scores[:0] if np.isnan(scores).all() else scores
    return np.asarray(rows[space], dtype=float)


def count_rows(sample: Sample) -> int:
    return sum(sample.values()) if isinstance(sample, Mapping) else len(sample)


def explain_missing(space: str, reference: Window | None, current: Window | None) -> str | None:
    """Why a space cannot be compared, unless there are too few rows."""
    if space == "embeddings":
        lost = [w.not_embedded for w in (reference, current) if w is not None and w.not_embedded]
        return f"{LEFT_OUT}{lost[0]}" if lost else None
    return None


def describe_change(
    space: str, before: Sample, now: Sample, current: Window | None
) -> dict[str, Any]:
    """The figures that a report shows beside the test: means, labels or words."""
    if isinstance(before, Mapping) and isinstance(now, Mapping):
        return {"changes": largest_changes(before, now)}
    if space in TEXTS:
        words = {} if current is None else current.words
        return {"risen_words": _name_risen_words(list(before), list(now), words)}
    if space == "embeddings":
        return {}
    return {
        f"mean_{name}": float(np.asarray(sample, dtype=float).mean())
        for name, sample in (("reference", before), ("current", now))
    }


def _name_risen_words(
    before: Sequence[str], now: Sequence[str], words: Mapping[int, str]
) -> list[dict[str, Any]]:
    """Words in clearly more texts than before. A window keeps hashes, so only words of the current
    one have names.
    """
    shares = shares_of_buckets(before), shares_of_buckets(now)
    rises = shares[1] - shares[0]
    return [
        {"label": words[int(b)], "before": float(shares[0][b]), "now": float(shares[1][b])}
        for b in np.argsort(-rises, kind="stable")[:MAX_WORDS]
        if rises[b] >= MIN_RISE and int(b) in words
    ]

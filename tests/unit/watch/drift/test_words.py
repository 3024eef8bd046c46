"""The classifier of words: its error rate, its power, and texts without spaces."""

import numpy as np
import pytest

from rlhf_pipeline.core.errors import NotEnoughData
from rlhf_pipeline.watch.drift.words import (
    hash_words,
    word_difference,
)


def texts(seed: int, n: int, other: float = 0.0) -> list[str]:
    """Ten words of a common kind each; a share of the texts uses rarer words of its own."""
    rng = np.random.default_rng([seed, n])
    drawn = rng.geometric(0.03, size=(n, 10))
    drawn[(rng.random(n) < other)[:, None] & (drawn > 10)] += 500
    return [hash_words(" ".join(f"w{i}" for i in row)) for row in drawn]


def test_texts_of_one_kind_differ_at_the_stated_rate():
    p = np.array(
        [
            word_difference(texts(s, 60), texts(500 + s, 40), n_permutations=199).p_value
            for s in range(100)
        ]
    )
    assert 0.2 <= np.mean(p < 0.3) <= 0.4
    assert np.mean(p <= 0.02) <= 0.06


def test_the_effect_is_about_half_the_share_of_other_texts():
    results = [word_difference(texts(s, 300), texts(s, 200, 0.4)) for s in range(3)]
    assert np.mean([result.effect for result in results]) == pytest.approx(0.2, abs=0.05)
    assert max(result.p_value for result in results) < 0.001


def test_single_text_is_refused_as_a_sample():
    with pytest.raises(NotEnoughData, match="1 and 2 texts"):
        word_difference(["1"], ["1", "2"])

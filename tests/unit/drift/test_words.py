"""The classifier of words: its error rate, its power, and texts without spaces."""

import numpy as np
import pytest

from rlhf_pipeline.drift.words import (
    MAX_CHARACTERS,
    find_words,
    hash_words,
    name_buckets,
    word_difference,
)
from rlhf_pipeline.errors import NotEnoughData


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
    found = [word_difference(texts(s, 300), texts(s, 200, 0.4)) for s in range(3)]
    assert np.mean([result.effect for result in found]) == pytest.approx(0.2, abs=0.05)
    assert max(result.p_value for result in found) < 0.001


def test_equal_texts_and_texts_without_words_do_not_differ():
    for text in (hash_words("the same"), ""):
        result = word_difference([text] * 30, [text] * 20, n_permutations=199)
        assert (result.effect, result.p_value) == (0, 1)


def test_words_have_no_case_and_chinese_letters_are_words():
    assert find_words("Der Hut, der_Hut! 東京で3") == ["der", "hut", "東", "京", "で", "3"]
    assert find_words("") == []
    assert find_words("a" * MAX_CHARACTERS + " never") == ["a" * MAX_CHARACTERS]
    assert set(name_buckets(["to be", "or not to be"]).values()) == {"to", "be", "or", "not"}


def test_one_text_is_not_a_sample():
    with pytest.raises(NotEnoughData, match="1 and 2 texts"):
        word_difference(["1"], ["1", "2"])

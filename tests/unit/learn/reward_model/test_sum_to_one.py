"""P(A over B) + P(B over A) = 1 to the last bit, of models whose last digits depend on the batch a
text is in.
"""

import numpy as np
import pytest

from rlhf_pipeline.learn.reward_model import (
    TransformerParams,
    TransformerRewardModel,
    preference_probability,
    transformer,
)
from rlhf_pipeline.learn.reward_model.base import distinct_texts
from rlhf_pipeline.learn.reward_model.embedding import EmbeddingParams, EmbeddingRewardModel
from rlhf_pipeline.learn.reward_model.encoder import Encoder
from tests.unit.learn.reward_model.tiny_networks import save_tiny_bert, word_pairs
from tests.unit.learn.reward_model.word_pairs import WordEncoder


class ByPlace(WordEncoder):
    """Its vectors depend, a little, on where in the list a text stands."""

    def encode(self, texts, *, progress=None):
        return super().encode(texts) + 1e-6 * np.arange(len(texts), dtype=np.float32)[:, None]


@pytest.fixture(scope="module")
def models(tmp_path_factory):
    pairs = word_pairs()
    embedding = EmbeddingRewardModel(
        EmbeddingParams(l2_grid=[0.1], context_penalty_grid=[3.0], n_members=3), ByPlace()
    ).fit(pairs)
    encoder = Encoder(save_tiny_bert(tmp_path_factory.mktemp("bert")), max_tokens=24)
    params = TransformerParams(
        max_tokens=24, steps=4, learning_rate=3e-3, precision="float32", n_members=2
    )
    return {
        "embedding": embedding,
        "transformer": TransformerRewardModel(params, encoder).fit(pairs),
    }


@pytest.mark.parametrize("kind", ["embedding", "transformer"])
@pytest.mark.parametrize("by_place", [False, True])
def test_both_orders_of_a_pair_sum_to_one_exactly(models, kind, by_place, monkeypatch):
    model, plain = models[kind], transformer.pool_texts
    if by_place:  # a tiny network's digits are the same in every batch; a large one's are not
        monkeypatch.setattr(
            transformer, "pool_texts", lambda *args, **kwargs: _by_place(plain(*args, **kwargs))
        )
    pairs = word_pairs(20, seed=3).sample(frac=1, random_state=0)
    prompts, first, second = (pairs[name].tolist() for name in ("prompt", "chosen", "rejected"))
    n = len(pairs)

    def p(a, b):
        scores = model.score([*prompts, *prompts], [*a, *b])
        return preference_probability(scores[:n] - scores[n:])

    there, back = p(first, second), p(second, first)
    assert (there + back == 1.0).all()
    assert len(set(there)) > 20
    for a, b in zip(
        model.member_scores(prompts, first),
        model.member_scores(prompts[::-1], first[::-1]),
        strict=True,
    ):
        np.testing.assert_array_equal(a, b[::-1])


def _by_place(pooled):
    return pooled + 1e-7 * np.arange(len(pooled))[:, None]


def test_distinct_texts_are_sorted_and_restored():
    prompts, completions, place = distinct_texts(["q", "p", "q", "p"], ["b", "b", "a", "b"])
    assert list(zip(prompts, completions, strict=True)) == [("p", "b"), ("q", "a"), ("q", "b")]
    assert place.tolist() == [2, 0, 1, 0]
    assert distinct_texts([], [])[2].dtype == np.int64

"""Rows are divided so that the logits of a batch fit in memory."""

from types import SimpleNamespace

from rlhf_pipeline.generate.policy.batches import batch_by_logits

CONFIG = SimpleNamespace(vocab_size=100)
MODEL = SimpleNamespace(config=SimpleNamespace(get_text_config=lambda: CONFIG))


def test_batch_has_similar_lengths_and_bounded_logits():
    lengths = [10, 40, 11, 9, 41]
    assert batch_by_logits(lengths, MODEL, max_logits=3300) == [[3, 0, 2], [1], [4]]
    assert batch_by_logits(lengths, MODEL, max_logits=8200) == [[3, 0, 2], [1, 4]]
    assert batch_by_logits(lengths, MODEL, max_logits=1) == [[3], [0], [2], [1], [4]]
    assert batch_by_logits(lengths, MODEL, max_rows=2) == [[3, 0], [2, 1], [4]]
    assert batch_by_logits([], MODEL) == []

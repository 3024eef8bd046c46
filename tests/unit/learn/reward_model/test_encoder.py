import os
import subprocess
import sys
import textwrap

import numpy as np
import pytest

from rlhf_pipeline.core.errors import InvalidScores, ModelHashMismatch, ModelNotFound
from rlhf_pipeline.core.records import content_hash
from rlhf_pipeline.learn.reward_model.embedding_cache import EmbeddingCache
from rlhf_pipeline.learn.reward_model.encoder import Encoder, encoder_identity

TEXTS = [
    "Paris.",
    "I am glad you ask! The capital of France is Paris, dear friend.",
    "",
    "no",
    "word " * 400,
    "naïve 東京 🙂",
    "a b c",
    "x" * 90,
]


def keys(*names: str) -> list[str]:
    return [content_hash(name) for name in names]


def vectors(n: int) -> np.ndarray:
    return np.arange(n * 4, dtype=np.float32).reshape(n, 4)


def test_stored_embeddings_are_found_by_every_process(tmp_path):
    cache, other = EmbeddingCache(tmp_path), EmbeddingCache(tmp_path)
    assert other.get_many(keys("a")) == {}
    cache.put_many(keys("a", "b"), vectors(2))
    for reader in (cache, other, EmbeddingCache(tmp_path)):
        got = reader.get_many(keys("b", "c"))
        assert list(got) == keys("b")
        np.testing.assert_array_equal(got[keys("b")[0]], vectors(2)[1])


@pytest.mark.parametrize("length", [0, 10, 40, 100, -1])
def test_a_half_written_file_is_ignored_and_written_again(tmp_path, length):
    EmbeddingCache(tmp_path).put_many(keys("a", "b"), vectors(2))
    (file,) = tmp_path.glob("*.emb")
    file.write_bytes(file.read_bytes()[:length])
    cache = EmbeddingCache(tmp_path)
    assert cache.get_many(keys("a")) == {}
    assert cache.n_ignored == 1
    cache.put_many(keys("a", "b"), vectors(2))
    assert len(cache.get_many(keys("a", "b"))) == 2
    assert len(list(tmp_path.iterdir())) == 1


def test_a_killed_writer_leaves_complete_entries(tmp_path):
    killed = textwrap.dedent(
        f"""
        import os, signal
        import numpy as np
        from pathlib import Path
        from rlhf_pipeline.core.records import content_hash
        from rlhf_pipeline.learn.reward_model.embedding_cache import EmbeddingCache
        cache = EmbeddingCache(Path({str(tmp_path)!r}))
        cache.put_many([content_hash("a")], np.ones((1, 4), dtype=np.float32))
        os.fsync = lambda descriptor: os.kill(os.getpid(), signal.SIGKILL)
        cache.put_many([content_hash("b")], np.ones((1, 4), dtype=np.float32))
        """
    )
    done = subprocess.run(
        [sys.executable, "-c", killed], check=False, env={**os.environ, "PYTHONPATH": "."}
    )
    assert done.returncode == -9
    cache = EmbeddingCache(tmp_path)
    assert list(cache.get_many(keys("a", "b"))) == keys("a")
    assert cache.n_ignored == 0


def test_a_nan_embedding_is_never_cached(tmp_path):
    with pytest.raises(InvalidScores):
        EmbeddingCache(tmp_path).put_many(keys("a"), np.full((1, 4), np.nan, dtype=np.float32))
    assert not list(tmp_path.iterdir())


def test_a_folder_without_weights_is_named(tmp_path):
    with pytest.raises(ModelNotFound, match=str(tmp_path)):
        Encoder(tmp_path)
    with pytest.raises(ModelNotFound, match="gone"):
        Encoder(tmp_path / "gone")


def test_offline_weights_of_another_hash_are_refused(tmp_path):
    (tmp_path / "model.safetensors").write_bytes(b"not the weights")
    with pytest.raises(ModelHashMismatch, match="reinstall"):
        encoder_identity(tmp_path, is_offline=True, max_tokens=256)


def test_a_batch_of_one_equals_a_batch_of_eight():
    together = Encoder(batch_tokens=8 * 256).encode(TEXTS)
    encoder = Encoder()
    for text, vector in zip(TEXTS, together, strict=True):
        np.testing.assert_allclose(encoder.encode([text])[0], vector, atol=1e-5)
    np.testing.assert_allclose(np.linalg.norm(together, axis=1), 1.0, atol=1e-5)
    assert together.shape == (8, 384)


def test_batches_are_bounded_by_tokens():
    encoder = Encoder(max_tokens=64, batch_tokens=64)
    texts = dict(zip("abcdefgh", TEXTS, strict=True))
    batches = encoder._make_batches(texts)
    assert sorted(key for batch in batches for key in batch) == sorted(texts)
    assert ["e"] in batches  # 400 words, cut to 64 tokens: it fills a batch
    assert {"a", "c", "d"} <= set(batches[0])
    assert encoder._make_batches(dict(reversed(texts.items()))) == batches


def test_texts_beyond_the_window_keep_their_beginning(caplog):
    encoder = Encoder(max_tokens=16)
    long, cut = encoder.encode(["word " * 400, "word " * 14])
    assert "1 texts have more than 16 tokens" in caplog.text
    np.testing.assert_allclose(long, cut, atol=1e-5)
    assert encoder.hash != Encoder().hash


def test_cached_texts_are_not_encoded_again(tmp_path):
    first = Encoder(cache=EmbeddingCache(tmp_path))
    vectors = first.encode(TEXTS)
    second = Encoder(cache=EmbeddingCache(tmp_path))
    np.testing.assert_array_equal(second.encode(TEXTS[::-1]), vectors[::-1])
    assert second._loaded is None  # the weights were not even read

"""Tests whether texts of two windows use other words: a classifier of words, by permutation."""

import re
import zlib
from collections import Counter
from collections.abc import Iterable, Sequence
from itertools import pairwise

import numpy as np
import numpy.typing as npt

from rlhf_pipeline.core.errors import NotEnoughData
from rlhf_pipeline.watch.drift.base import Floats
from rlhf_pipeline.watch.drift.two_sample import TIE, TestResult

N_BUCKETS = 4096  # of the hash of a word
MAX_CHARACTERS = 4000  # of a text; later words are not read
CHUNK = 500  # permutations at once: 8 MB for each thousand texts
# Chinese and Japanese are written without spaces: each of their letters counts as a word.
WORD = re.compile(r"[\u3040-\u30ff\u3400-\u9fff]|[^\W_\u3040-\u30ff\u3400-\u9fff]+")


def find_words(text: str) -> list[str]:
    """The distinct words of a text in lower case, in their order.

    >>> find_words("The cat, the hat")
    ['the', 'cat', 'hat']
    """
    return list(dict.fromkeys(WORD.findall(text[:MAX_CHARACTERS].lower())))


def hash_words(text: str) -> str:
    """The buckets of a text's words as numbers, ascending: what a stored window keeps of a text.

    >>> hash_words("the cat") == hash_words("Cat? The cat!")
    True
    """
    return " ".join(str(bucket) for bucket in sorted({_bucket(word) for word in find_words(text)}))


def name_buckets(texts: Iterable[str]) -> dict[int, str]:
    """The most frequent word of each bucket in `texts`."""
    counts = Counter(word for text in texts for word in find_words(text))
    # the most frequent one is written last; of equals the first in the alphabet
    ranked = sorted(counts.items(), key=lambda item: (-item[1], item[0]), reverse=True)
    return {_bucket(word): word for word, _ in ranked}


def word_difference(
    reference: Sequence[str], current: Sequence[str], *, n_permutations: int = 1999, seed: int = 0
) -> TestResult:
    """How well the words of a text, as `hash_words` gives them, tell its window.

    Each text is scored by its mean similarity (cosine of TF-IDF) to the other texts of either
    window. The statistic is the AUC of that score less its mean over permuted windows, which is
    below 0.5 because a text is left out of its own window's mean; the p-value is (k+1)/(n+1). The
    statistic is about half of the share of texts that are of another kind. Lopez-Paz and Oquab
    2017, Revisiting Classifier Two-Sample Tests.
    """
    n, total = len(reference), len(reference) + len(current)
    if min(n, len(current)) < 2:
        raise NotEnoughData(
            f"{n} and {len(current)} texts; a two-sample test needs 2 of each and has little power "
            "below 30."
        )
    similarity = _similarities([*reference, *current])
    rng = np.random.default_rng(seed)
    is_reference = np.arange(total) < n
    observed = float(_areas(similarity, is_reference[:, None])[0])
    permuted = np.concatenate(
        [
            _areas(
                similarity,
                np.stack(
                    [
                        is_reference[rng.permutation(total)]
                        for _ in range(min(CHUNK, n_permutations - start))
                    ],
                    axis=1,
                ),
            )
            for start in range(0, n_permutations, CHUNK)
        ]
    )
    n_larger = int(np.sum(permuted >= observed - TIE))
    gain = observed - float(permuted.mean())
    return TestResult(gain, max(0.0, gain), (n_larger + 1) / (n_permutations + 1))


def shares_of_buckets(texts: Sequence[str]) -> Floats:
    """The share of texts with a word in each bucket, (N_BUCKETS,)."""
    counts = np.bincount(
        np.array([int(b) for text in texts for b in text.split()], dtype=np.int64),
        minlength=N_BUCKETS,
    )
    shares: Floats = counts / max(len(texts), 1)
    return shares


def _bucket(word: str) -> int:
    return zlib.crc32(word.encode()) % N_BUCKETS


def _similarities(texts: Sequence[str]) -> Floats:
    """Cosine of TF-IDF of all pairs, with a zero diagonal: a text is not compared with itself."""
    from scipy.sparse import csr_matrix

    buckets = [[int(b) for b in text.split()] for text in texts]
    ends = np.cumsum([0, *(len(row) for row in buckets)])
    columns = np.array([b for row in buckets for b in row], dtype=np.int64)
    in_texts = np.bincount(columns, minlength=N_BUCKETS)
    # of both windows together: a weight that knew the window would break the permutation
    weight = np.log((1 + len(texts)) / (1 + in_texts)) + 1
    values = weight[columns]
    norms = np.sqrt([np.sum(values[a:b] ** 2) or 1.0 for a, b in pairwise(ends)])
    rows = csr_matrix(
        (values / np.repeat(norms, np.diff(ends)), columns, ends), shape=(len(texts), N_BUCKETS)
    )
    similarity: Floats = (rows @ rows.T).toarray()
    np.fill_diagonal(similarity, 0)
    return similarity


def _areas(similarity: Floats, is_reference: npt.NDArray[np.bool_]) -> Floats:
    """AUC of the score "nearer to current" for each column of labels, each text left out of its
    own window's mean.
    """
    from scipy.stats import rankdata

    first = is_reference.astype(np.float64)
    n = float(first[:, 0].sum())
    m = len(first) - n
    to_reference = similarity @ first
    to_current = similarity.sum(axis=1)[:, None] - to_reference
    score = to_current / np.where(is_reference, m, m - 1) - to_reference / np.where(
        is_reference, n - 1, n
    )
    ranks = rankdata(score, axis=0)
    areas: Floats = (np.sum(ranks * (1 - first), axis=0) - m * (m + 1) / 2) / (n * m)
    return areas

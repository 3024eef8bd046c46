"""Names clusters by the words of their prompts: class-based TF-IDF, stop words of any language out.

A word counts once per prompt, so that a long prompt has no more say. Grootendorst 2022, BERTopic:
the frequency in the cluster times log(1 + A / f), f being the frequency over all clusters and A
the mean number of words per cluster.
"""

import re
from collections import Counter
from collections.abc import Mapping, Sequence

import numpy as np

N_TERMS = 20  # kept per cluster: enough to recognise it on another day
N_IN_NAME = 3
MAX_IN_NAME = 18  # characters of a term
LEAST_PROMPTS = 2  # with the word, in a cluster
# A word that the rest uses as often says nothing about a cluster. This removes stop words in any
# language, beside the English list.
LEAST_RATIO = 1.5
WORD = re.compile(r"[^\W\d_]{2,}")

Terms = dict[str, float]


def distinctive_terms(prompts: Sequence[Sequence[str]]) -> list[Terms]:
    """For the prompts of each cluster, its most distinctive words with their weights, highest
    first; at most N_TERMS. The weights of a cluster are a vector of length 1.
    """
    counts = [Counter(word for text in texts for word in _find_words(text)) for texts in prompts]
    overall = sum(counts, Counter[str]())
    n_all = sum(len(texts) for texts in prompts)
    mean_size = sum(overall.values()) / max(1, len(prompts))
    return [
        _weigh_terms(count, len(texts), overall, n_all, mean_size)
        for count, texts in zip(counts, prompts, strict=True)
    ]


def name_cluster(terms: Mapping[str, float]) -> str | None:
    """Its first terms as a name; None without terms."""
    words = [word if len(word) <= MAX_IN_NAME else f"{word[: MAX_IN_NAME - 1]}…" for word in terms]
    return " · ".join(words[:N_IN_NAME]) or None


def term_similarity(weights: Mapping[str, float], other: Mapping[str, float]) -> float:
    """Cosine of two clusters' terms, 0 to 1."""
    return float(sum(weight * other.get(word, 0.0) for word, weight in weights.items()))


def _find_words(text: str) -> set[str]:
    from sklearn.feature_extraction.text import ENGLISH_STOP_WORDS

    return set(WORD.findall(text.casefold())).difference(ENGLISH_STOP_WORDS)


def _weigh_terms(
    count: Counter[str], n: int, overall: Counter[str], n_all: int, mean_size: float
) -> Terms:
    weights = {}
    for word, inside in count.items():
        outside = overall[word] - inside
        rest = outside / (n_all - n) if n_all > n else 0.0
        if inside >= LEAST_PROMPTS and inside / n >= LEAST_RATIO * rest:
            weights[word] = inside / n * float(np.log1p(mean_size / overall[word]))
    # equal weights by the alphabet, so that the order of prompts does not matter
    first = sorted(weights.items(), key=lambda item: (-item[1], item[0]))[:N_TERMS]
    length = float(np.sqrt(sum(weight**2 for _, weight in first)))
    return {word: round(weight / length, 6) for word, weight in first}

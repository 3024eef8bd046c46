"""Finds texts that are nearly the same: the share of runs of characters that they have in common.

An index of the texts by run counts the common runs with all earlier texts at once: it is exact, and
no earlier text is read again.
"""

from array import array
from typing import Any

import numpy as np

SHINGLE = 5


class NearDuplicates:
    """Finds near-duplicates among the texts seen so far."""

    def __init__(self, max_similarity: float) -> None:
        """Two texts are near-duplicates above `max_similarity`, 0 to 1."""
        self.max_similarity = max_similarity
        self._texts: list[str] = []
        self._n_runs = array("I")  # of each text
        self._found_by: dict[str, array[int]] = {}  # the texts that have a run

    def __len__(self) -> int:
        return len(self._texts)

    def find(self, text: str) -> tuple[float, str] | None:
        """The most similar earlier text above the limit, with its similarity; None if there is
        none.
        """
        mine = shingles(text)
        having = [self._found_by[run] for run in mine if run in self._found_by]
        if not having:
            return None
        n_common = np.bincount(np.concatenate(having), minlength=len(self))
        similarity = n_common / (len(mine) + np.array(self._n_runs) - n_common)
        best = int(similarity.argmax())
        if similarity[best] <= self.max_similarity:
            return None
        return float(similarity[best]), self._texts[best]

    def add(self, text: str) -> None:
        runs = shingles(text)
        for run in runs:
            self._found_by.setdefault(run, array("I")).append(len(self._texts))
        self._n_runs.append(len(runs))
        self._texts.append(text)


def shingles(text: str) -> frozenset[str]:
    """The runs of SHINGLE characters of a text, case and spacing aside; a shorter text is one run.

    >>> sorted(shingles("A  cats!"))
    [' cats', 'a cat', 'cats!']
    """
    plain = " ".join(text.casefold().split())
    return frozenset(plain[i : i + SHINGLE] for i in range(max(1, len(plain) - SHINGLE + 1)))


def jaccard(a: frozenset[Any], b: frozenset[Any]) -> float:
    """The share of common runs, 0 to 1.

    >>> jaccard(frozenset("ab"), frozenset("bc"))
    0.3333333333333333
    """
    return len(a & b) / len(a | b)

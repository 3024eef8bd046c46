"""Finds texts that are nearly the same: the share of runs of characters that they have in common.

Texts above a limit share at least one of the first runs of any fixed order (prefix filtering:
Chaudhuri et al. 2006), so only texts that do are compared, and none is missed.
"""

from math import ceil
from zlib import crc32

SHINGLE = 5


class NearDuplicates:
    """Finds near-duplicates among the texts seen so far."""

    def __init__(self, max_similarity: float) -> None:
        """Two texts are near-duplicates above `max_similarity`, 0 to 1."""
        self.max_similarity = max_similarity
        self._texts: list[str] = []
        self._found_by: dict[int, list[int]] = {}  # texts by the hash of each of their first runs

    def __len__(self) -> int:
        return len(self._texts)

    def find(self, text: str) -> tuple[float, str] | None:
        """The most similar earlier text above the limit, with its similarity; None if there is
        none.
        """
        mine = shingles(text)
        alike = {n for key in self._first_runs(mine) for n in self._found_by.get(key, ())}
        found = ((jaccard(mine, shingles(self._texts[n])), self._texts[n]) for n in sorted(alike))
        return max(
            (pair for pair in found if pair[0] > self.max_similarity),
            key=lambda pair: pair[0],
            default=None,
        )

    def add(self, text: str) -> None:
        for key in self._first_runs(shingles(text)):
            self._found_by.setdefault(key, []).append(len(self._texts))
        self._texts.append(text)

    def _first_runs(self, runs: frozenset[str]) -> list[int]:
        n = len(runs) - ceil(self.max_similarity * len(runs)) + 1
        return sorted(crc32(run.encode("utf-8", "surrogatepass")) for run in runs)[:n]


def shingles(text: str) -> frozenset[str]:
    """The runs of SHINGLE characters of a text, case and spacing aside; a shorter text is one run.

    >>> sorted(shingles("A  cats!"))
    [' cats', 'a cat', 'cats!']
    """
    plain = " ".join(text.casefold().split())
    return frozenset(plain[i : i + SHINGLE] for i in range(max(1, len(plain) - SHINGLE + 1)))


def jaccard(a: frozenset[str], b: frozenset[str]) -> float:
    """The share of common runs, 0 to 1.

    >>> jaccard(frozenset("ab"), frozenset("bc"))
    0.3333333333333333
    """
    return len(a & b) / len(a | b)

"""Finds texts that are nearly the same, by MinHash (Broder 1997).

A text is the set of its runs of SHINGLE characters, case and spacing aside; two texts are as
similar as the share of runs they have in common (Jaccard). N_HASHES minima estimate it; bands of
them find the texts to compare (Leskovec, Rajaraman and Ullman, chapter 3), and the runs themselves
confirm, so that there are no false positives. Our own code because of memory: `datasketch` keeps
Python objects for every band of every text; here a text costs N_HASHES numbers of 4 bytes, two
more a band, and its characters.
"""

import numpy as np
import numpy.typing as npt

SHINGLE = 5
N_HASHES = 64
PRIME = (1 << 31) - 1
LEAST_FOUND = 0.99  # share found of the texts that are as similar as the limit
# three standard errors of an estimate from 64 minima: further below the limit, the runs are not
# compared
SLACK = 0.15
FIRST_SIZE = 1024

Ints = npt.NDArray[np.int32]
# Drawn from a fixed seed, so that signatures are the same on every machine.
_FACTORS, _TERMS = np.random.default_rng(5_1997).integers(
    1, PRIME, size=(2, N_HASHES, 1), dtype=np.int64
)


class NearDuplicates:
    """Finds near-duplicates among the texts seen so far. Results depend only on the texts and
    their order.
    """

    def __init__(self, max_similarity: float) -> None:
        """Two texts are near-duplicates above `max_similarity`, 0 to 1."""
        self.max_similarity = max_similarity
        self._rows = rows_per_band(max_similarity)
        self._texts: list[str] = []
        self._n_bands = N_HASHES // self._rows
        self._allocate(FIRST_SIZE)

    def __len__(self) -> int:
        return len(self._texts)

    def find(self, text: str) -> tuple[float, str] | None:
        """An earlier text above the limit, with its similarity; None if there is none."""
        mine, minima = shingles(text), signature(text)
        alike = self._candidates(minima)
        estimates = (self._signatures[alike] == minima).mean(axis=1)
        for i in np.argsort(-estimates, kind="stable"):
            if estimates[i] < self.max_similarity - SLACK:
                return None
            other = self._texts[alike[i]]
            similarity = jaccard(mine, shingles(other))
            if similarity > self.max_similarity:
                return similarity, other
        return None

    def add(self, text: str) -> None:
        if len(self._texts) == len(self._signatures):
            earlier = self._signatures
            self._allocate(2 * len(earlier))
            for number, minima in enumerate(earlier):
                self._link(number, minima)
        self._link(len(self._texts), signature(text))
        self._texts.append(text)

    def _allocate(self, size: int) -> None:
        """Empty tables for `size` texts: `_first` holds, by band and slot, the last text put there,
        `_earlier` the one put before each.
        """
        self._signatures = np.zeros((size, N_HASHES), dtype=np.int32)
        self._first = np.full((self._n_bands, size), -1, dtype=np.int32)
        self._earlier = np.full((size, self._n_bands), -1, dtype=np.int32)

    def _link(self, number: int, minima: Ints) -> None:
        bands, slots = np.arange(self._n_bands), self._slots(minima)
        self._signatures[number] = minima
        self._earlier[number] = self._first[bands, slots]
        self._first[bands, slots] = number

    def _candidates(self, minima: Ints) -> npt.NDArray[np.intp]:
        """Texts that share a slot of some band: all that share a band, and a few by chance. Oldest
        first.
        """
        bands = np.arange(self._n_bands)
        at = self._first[bands, self._slots(minima)]
        met = []
        while (held := at >= 0).any():
            bands, at = bands[held], at[held]
            met.append(at)
            at = self._earlier[at, bands]
        return (
            np.unique(np.concatenate(met)).astype(np.intp) if met else np.array([], dtype=np.intp)
        )

    def _slots(self, minima: Ints) -> npt.NDArray[np.int64]:
        """The slot of each band, (n_bands,): its minima, mixed."""
        mixed = np.zeros(self._n_bands, dtype=np.int64)
        for column in minima.reshape(self._n_bands, self._rows).T:
            mixed = (mixed * 1_000_003 + column) % PRIME
        return mixed % len(self._signatures)


def rows_per_band(similarity: float) -> int:
    """The most minima a band may have so that LEAST_FOUND of all texts this similar share a band:
    longer bands, fewer comparisons.

    >>> [rows_per_band(s) for s in (0.3, 0.6, 0.8, 0.95)]
    [1, 2, 4, 8]
    """
    wide = [
        rows
        for rows in (2, 4, 8, 16)
        if 1 - (1 - similarity**rows) ** (N_HASHES // rows) >= LEAST_FOUND
    ]
    return max(wide, default=1)


def shingles(text: str) -> frozenset[str]:
    """The runs of SHINGLE characters of a text, case and spacing aside; a shorter text is one run.

    >>> sorted(shingles("A  cats!"))
    [' cats', 'a cat', 'cats!']
    """
    plain = _normalise(text)
    return frozenset(plain[i : i + SHINGLE] for i in range(max(1, len(plain) - SHINGLE + 1)))


def jaccard(a: frozenset[str], b: frozenset[str]) -> float:
    """The share of common runs, 0 to 1.

    >>> jaccard(frozenset("ab"), frozenset("bc"))
    0.3333333333333333
    """
    return len(a & b) / len(a | b)


def signature(text: str) -> Ints:
    """The N_HASHES minima of a text, (N_HASHES,)."""
    plain = _normalise(text)
    signs = np.frombuffer(
        plain.ljust(SHINGLE).encode("utf-32-le", "surrogatepass"), dtype="<u4"
    ).astype(np.int64)
    runs = np.zeros(len(signs) - SHINGLE + 1, dtype=np.int64)
    for k in range(SHINGLE):
        runs = (runs * 1_114_111 + signs[k : k + len(runs)]) % PRIME
    return np.asarray(((_FACTORS * runs + _TERMS) % PRIME).min(axis=1), dtype=np.int32)


def _normalise(text: str) -> str:
    return " ".join(text.casefold().split())

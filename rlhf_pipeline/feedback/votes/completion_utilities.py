"""Joint Gaussian over the utilities of completions, so that votes on one comparison inform others.

A completion has a utility u with prior N(0, 1/2), so a difference d = u_a - u_b has prior N(0, 1).
The votes on a comparison give a Gaussian factor on its d, stored as precision and precision times
mean. All factors together give one Gaussian over each set of completions connected by comparisons.
"""

import numpy as np
import numpy.typing as npt

Floats = npt.NDArray[np.float64]
Ints = npt.NDArray[np.int64]

PRIOR_PRECISION = 2.0  # of a single utility
CELLS_AT_ONCE = 4_000_000  # matrix cells per batch, 32 MB


class Utilities:
    """The completions of n comparisons: `a` and `b` (n,) are their indices from 0, different within
    a comparison.

    A block of m connected completions is solved as an m by m matrix; m is the number of completions
    of a prompt, dozens rather than thousands.
    """

    def __init__(self, a: Ints, b: Ints):
        from scipy.sparse import coo_array
        from scipy.sparse.csgraph import connected_components

        self._a, self._b = a, b
        n_nodes = int(max(a.max(initial=-1), b.max(initial=-1))) + 1
        graph = coo_array((np.ones(len(a)), (a, b)), shape=(n_nodes, n_nodes))
        block_of = np.asarray(connected_components(graph, directed=False)[1], dtype=np.int64)
        sizes = np.bincount(block_of)
        place = np.empty(n_nodes, dtype=np.int64)  # index of a completion within its block
        place[np.argsort(block_of, kind="stable")] = np.arange(n_nodes) - np.repeat(
            np.cumsum(sizes) - sizes, sizes
        )
        n_edges = np.bincount(block_of[a], minlength=len(sizes))
        is_alone = n_edges[block_of[a]] == 1
        self._alone = np.flatnonzero(is_alone)
        self._blocks = [
            self._blocks_of_size(int(size), a, b, block_of, place, sizes, is_alone)
            for size in np.unique(sizes[block_of[a[~is_alone]]])
        ]

    def select(self, indices: Ints) -> "Utilities":
        """The completions of some comparisons, given by their indices."""
        codes = np.unique(
            np.concatenate([self._a[indices], self._b[indices]]), return_inverse=True
        )[1]
        return Utilities(codes[: len(indices)], codes[len(indices) :])

    def draw(self, rng: np.random.Generator) -> Floats:
        """Differences (n,) of utilities drawn from their prior."""
        n_nodes = int(max(self._a.max(), self._b.max())) + 1
        utilities = rng.normal(0.0, PRIOR_PRECISION**-0.5, n_nodes)
        return np.asarray(utilities[self._a] - utilities[self._b])

    def differences(self, precision: Floats, weighted: Floats) -> tuple[Floats, Floats]:
        """Posterior mean and variance (n,) of each comparison's d, given each factor's precision
        and precision times mean, both (n,).
        """
        variance = 1.0 / (1.0 + precision)  # for comparisons that share no completion
        mean = variance * weighted
        for size, n_blocks, edges, block, at, bt in self._blocks:
            at_once = max(1, CELLS_AT_ONCE // size**2)
            for start in range(0, n_blocks, at_once):
                some = np.flatnonzero((block >= start) & (block < start + at_once))
                who = edges[some]
                mean[who], variance[who] = _solve_blocks(
                    min(at_once, n_blocks - start),
                    size,
                    block[some] - start,
                    at[some],
                    bt[some],
                    precision[who],
                    weighted[who],
                )
        return mean, variance

    @staticmethod
    def _blocks_of_size(
        size: int,
        a: Ints,
        b: Ints,
        block_of: Ints,
        place: Ints,
        sizes: Ints,
        is_alone: npt.NDArray[np.bool_],
    ) -> tuple[int, int, Ints, Ints, Ints, Ints]:
        edges = np.flatnonzero(~is_alone & (sizes[block_of[a]] == size))
        block = np.asarray(np.unique(block_of[a[edges]], return_inverse=True)[1], dtype=np.int64)
        return size, int(block.max()) + 1, edges, block, place[a[edges]], place[b[edges]]


def _solve_blocks(
    n_blocks: int, size: int, block: Ints, at: Ints, bt: Ints, precision: Floats, weighted: Floats
) -> tuple[Floats, Floats]:
    matrix = np.zeros((n_blocks, size, size))
    matrix[:, np.arange(size), np.arange(size)] = PRIOR_PRECISION
    for i, j, sign in ((at, at, 1.0), (bt, bt, 1.0), (at, bt, -1.0), (bt, at, -1.0)):
        np.add.at(matrix, (block, i, j), sign * precision)
    right_side = np.zeros((n_blocks, size))
    np.add.at(right_side, (block, at), weighted)
    np.add.at(right_side, (block, bt), -weighted)
    covariance = np.linalg.inv(matrix)
    means = (covariance @ right_side[..., None])[..., 0]
    variance = covariance[block, at, at] + covariance[block, bt, bt] - 2 * covariance[block, at, bt]
    return means[block, at] - means[block, bt], variance

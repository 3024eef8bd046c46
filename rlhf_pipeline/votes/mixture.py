"""How decided people are, comparison by comparison: the distribution of max(p, 1 - p) behind votes
for a or b. Knows counts; knows no frame.

Of a comparison with votes k : n - k, p is hardly known. Of a thousand comparisons the distribution
of p is: the nonparametric maximum-likelihood mixture of binomials (Laird 1978; Lindsay 1983), found
by EM on a grid. Which completion is a says nothing, so the mixture is symmetric. What n votes each
can tell are n/2 moments of it, no more: of two votes each just one, and then a weak prior that no
degree of decidedness is likelier than another fills in the rest.
"""

import numpy as np
import numpy.typing as npt

Floats = npt.NDArray[np.float64]
Ints = npt.NDArray[np.int64]

GRID = np.linspace(0.5, 1 - 1e-9, 26)  # of max(p, 1 - p)
PRIOR = 1.0  # comparisons, spread evenly over the grid
STEPS, LEAST_CHANGE = 400, 1e-7


def mean_decidedness(n: Ints, k: Ints, times: Ints) -> float:
    """The mean of max(p, 1 - p) over comparisons, of which `times` (P,) had n (P,) votes, k (P,) of
    them for one side.
    """
    chances = _chances(n, np.minimum(k, n - k))
    weights = np.full(len(GRID), 1 / len(GRID))
    for _ in range(STEPS):
        new = weights * ((times / (chances @ weights)) @ chances) + PRIOR / len(GRID)
        new /= new.sum()
        is_over = np.abs(new - weights).max() < LEAST_CHANGE
        weights = new
        if is_over:
            break
    return float(weights @ GRID)


def _chances(n: Ints, k: Ints) -> Floats:
    """Of each pattern at each point of the grid, up to a factor of the pattern: (P, G)."""
    sides = [
        k[:, None] * np.log(one) + (n - k)[:, None] * np.log(other)
        for one, other in ((GRID, 1 - GRID), (1 - GRID, GRID))
    ]
    both = np.logaddexp(*sides)
    return np.asarray(np.exp(both - both.max(axis=1, keepdims=True)))

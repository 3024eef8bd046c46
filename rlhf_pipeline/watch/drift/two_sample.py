"""Tests whether two samples come from one distribution: KS, PSI, MMD, error rates, shares."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from rlhf_pipeline.core.errors import InvalidScores, NotEnoughData
from rlhf_pipeline.watch.drift.base import Floats

# permuted statistics equal to the observed one up to rounding count as at least as large
TIE = 1e-12
MIN_EXPECTED = 5  # of a label in either sample (Cochran 1954); rarer labels are counted together


@dataclass(frozen=True)
class TestResult:
    """`effect` is the statistic less its expectation by chance for these sample sizes; `p_value`
    is under the hypothesis of one distribution.
    """

    __test__ = False  # not a pytest class

    statistic: float
    effect: float
    p_value: float


def kolmogorov_smirnov(reference: Floats, current: Floats) -> TestResult:
    """Largest distance of the two empirical distributions, 0 to 1. Conservative where values are
    tied.
    """
    from scipy.stats import ks_2samp

    reference = _require_sample(reference, "reference")
    current = _require_sample(current, "current")
    result = ks_2samp(reference, current)
    return TestResult(float(result.statistic), float(result.statistic), float(result.pvalue))


def population_stability(reference: Floats, current: Floats, *, n_bins: int = 10) -> TestResult:
    """PSI over quantile bins of the reference, with half a count added to each bin so that none is
    empty. Under one distribution PSI / (1/n + 1/m) is chi-squared with bins - 1 degrees of freedom
    (Yurdakul, Naranjo 2020, Statistical Properties of the Population Stability Index), so it has a
    p-value, and its expectation is subtracted from the effect: a fixed limit of 0.2 is exceeded by
    chance in small samples.
    """
    from scipy.stats import chi2

    reference = _require_sample(reference, "reference")
    current = _require_sample(current, "current")
    edges = np.unique(np.quantile(reference, np.linspace(0, 1, n_bins + 1)[1:-1]))
    if len(edges) == 1:  # (nearly) constant reference: below, at and above
        edges = np.array([np.nextafter(edges[0], -np.inf), edges[0]])
    share_reference, share_current = _bin_shares(reference, edges), _bin_shares(current, edges)
    psi = float(np.sum((share_current - share_reference) * np.log(share_current / share_reference)))
    per_degree = 1 / len(reference) + 1 / len(current)
    degrees = len(edges)
    return TestResult(
        psi, max(0.0, psi - degrees * per_degree), float(chi2.sf(psi / per_degree, degrees))
    )


def _bin_shares(values: Floats, edges: Floats) -> Floats:
    counts = np.bincount(np.digitize(values, edges, right=True), minlength=len(edges) + 1) + 0.5
    shares: Floats = counts / counts.sum()
    return shares


def maximum_mean_discrepancy(
    reference: Floats, current: Floats, *, n_permutations: int = 999, seed: int = 0
) -> TestResult:
    """Unbiased MMD² with an RBF kernel whose width is the median distance, and its permutation
    p-value (k+1)/(n+1).

    Arrays (n, d) and (m, d). One Gram matrix serves all permutations. Gretton et al. 2012, A Kernel
    Two-Sample Test.
    """
    reference = _require_sample(reference, "reference", 2)
    current = _require_sample(current, "current", 2)
    if reference.shape[1] != current.shape[1]:
        raise InvalidScores(
            f"Embeddings of {reference.shape[1]} and {current.shape[1]} dimensions cannot be "
            "compared. Embed both with one encoder."
        )
    gram = _gram_matrix(np.concatenate([reference, current]))
    n, total = len(reference), len(reference) + len(current)
    rng = np.random.default_rng(seed)
    labels = np.zeros((total, n_permutations + 1))
    labels[:n, 0] = 1
    for column in range(1, n_permutations + 1):
        labels[rng.permutation(total)[:n], column] = 1
    statistics = _mmd(gram, labels, n)
    n_larger = int(np.sum(statistics[1:] >= statistics[0] - TIE))
    return TestResult(
        float(statistics[0]), max(0.0, float(statistics[0])), (n_larger + 1) / (n_permutations + 1)
    )


def _gram_matrix(points: Floats) -> Floats:
    """RBF kernel of all pairs with a zero diagonal, because the estimate excludes pairs of a point
    with itself.
    """
    norms = np.sum(points**2, axis=1)
    squared = np.maximum(norms[:, None] + norms[None, :] - 2 * points @ points.T, 0)
    distances = squared[np.triu_indices(len(points), k=1)]
    # many equal points: median 0; all equal: any width works
    scale = np.median(distances) or np.mean(distances) or 1.0
    gram: Floats = np.exp(-squared / (2 * scale))
    np.fill_diagonal(gram, 0)
    return gram


def _mmd(gram: Floats, labels: Floats, n: int) -> Floats:
    """MMD² for every column of `labels` (1 = first sample, n of them): sums of blocks of one Gram
    matrix.
    """
    m = len(gram) - n
    rows = gram.sum(axis=1) @ labels
    within_first = np.einsum("ip,ip->p", labels, gram @ labels)
    across = rows - within_first
    within_second = gram.sum() - within_first - 2 * across
    squared: Floats = (
        within_first / (n * (n - 1)) + within_second / (m * (m - 1)) - 2 * across / (n * m)
    )
    return squared


def error_rate_rise(reference: Floats, current: Floats) -> TestResult:
    """Rise of the mean error (each in [0, 1]) by a one-sided two-sample z-test with pooled
    variance.
    """
    from scipy.stats import norm

    reference = _require_sample(reference, "reference")
    current = _require_sample(current, "current")
    rise = float(np.mean(current) - np.mean(reference))
    pooled = float(np.mean(np.concatenate([reference, current])))
    deviation = float(np.sqrt(pooled * (1 - pooled) * (1 / len(reference) + 1 / len(current))))
    # all right or all wrong in both: no rise
    p_value = float(norm.sf(rise / deviation)) if deviation > 0 else 1.0
    return TestResult(rise, max(0.0, rise), p_value)


def share_difference(reference: Mapping[str, int], current: Mapping[str, int]) -> TestResult:
    """Distance of the shares of labels, 0 to 1: the share of rows that would have to change their
    label (total variation). The p-value is Pearson's chi-squared test's of equal shares; labels
    that are too rare for it are counted as one, in both.
    """
    from scipy.stats import chi2_contingency

    labels = sorted({*reference, *current})
    counts = np.array([[side.get(label, 0) for label in labels] for side in (reference, current)])
    sizes = counts.sum(axis=1).astype(float)
    if sizes.min() < 2:
        raise NotEnoughData(
            f"{int(sizes[0])} and {int(sizes[1])} labels; a two-sample test needs 2 of each and "
            "has little power below 30."
        )
    counts = _pool_rare_labels(counts.astype(float), sizes)
    pooled = counts.sum(axis=0) / sizes.sum()
    shares = counts / sizes[:, None]
    distance = float(np.abs(shares[0] - shares[1]).sum() / 2)
    # mean absolute difference of two shares that are equal but for chance
    by_chance = np.sqrt(2 / np.pi * pooled * (1 - pooled) * (1 / sizes).sum()).sum() / 2
    return TestResult(
        distance,
        max(0.0, distance - float(by_chance)),
        float(chi2_contingency(counts, correction=False).pvalue),
    )


def _pool_rare_labels(counts: Floats, sizes: Floats) -> Floats:
    """Counts (2, k) with labels merged, the rarest first, until each is expected often enough."""
    needed = MIN_EXPECTED * sizes.sum() / sizes.min()  # of both samples together
    totals = counts.sum(axis=0)
    order = np.argsort(totals, kind="stable")
    reached = np.cumsum(totals[order])
    n_rare = int(np.sum(totals < needed))
    if n_rare == 0:
        return counts
    # what the rare ones lack together is taken from the next label
    n_pooled = max(n_rare, int(np.searchsorted(reached, needed)) + 1)
    first, others = order[:n_pooled], order[n_pooled:]
    return np.column_stack([counts[:, first].sum(axis=1), counts[:, others]])


def adjust_p_values(p_values: Sequence[float]) -> list[float]:
    """Benjamini–Hochberg: rejecting those at most alpha keeps the false discovery rate at alpha
    over the whole family.
    """
    from scipy.stats import false_discovery_control

    return [float(p) for p in false_discovery_control(p_values)] if len(p_values) else []


def _require_sample(values: Floats, name: str, n_dimensions: int = 1) -> Floats:
    sample = np.asarray(values, dtype=float)
    if sample.ndim != n_dimensions:
        raise InvalidScores(
            f"The {name} sample has {sample.ndim} dimensions; the test needs {n_dimensions}."
        )
    if len(sample) < 2:
        raise NotEnoughData(
            f"The {name} sample has {len(sample)} rows; a two-sample test needs 2 and has little "
            f"power below 30."
        )
    if not np.isfinite(sample).all():
        row = int((~np.isfinite(sample)).nonzero()[0][0])
        raise InvalidScores(
            f"The {name} sample is not finite at row {row}. Find the source of the NaN or "
            f"infinity; nothing is dropped silently."
        )
    return sample

"""Divides points into clusters by Ward's tree, and finds the branches whose error rate stands out.

One tree serves both. The cut of the best silhouette shows which kinds of prompts there are; the
scan looks at every branch, however small, because a failing topic is rarely as large as a kind. The
tree is grown without errors, so shuffled errors give the scan's exact p-values.
"""

from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from rlhf_pipeline.drift.base import Floats
from rlhf_pipeline.errors import InvalidScores, NotEnoughData

Labels = npt.NDArray[np.int64]

MAX_RELATIVE_SPREAD = 3  # largest spread of a column, in medians over the columns
N_FOR_K = 400  # points used to choose the number of clusters


@dataclass(frozen=True)
class Branch:
    """Points under one node whose error rate is above that of all others."""

    members: npt.NDArray[np.intp]
    p_value: float  # over all branches (family-wise)


@dataclass(frozen=True)
class Scan:
    """How branches are searched: at least `least` errors' points inside and outside a branch."""

    least: int
    alpha: float
    n_permutations: int
    seed: int


class PointTree:
    """Ward's tree of the points (n, d): every node is a run of neighbours in `order`."""

    def __init__(self, points: Floats) -> None:
        from scipy.cluster.hierarchy import leaves_list, ward

        if (points == points[0]).all():
            raise NotEnoughData(
                "No clusters: all embeddings are equal. Check that the encoder distinguishes texts."
            )
        self.points = points
        self._merges = ward(points)
        self.order = leaves_list(self._merges)
        self._starts, self._sizes = self._find_spans()

    def cut(self, most: int, *, seed: int) -> Labels:
        """The labels 0 to k - 1 of the k from 2 to `most` with the highest mean silhouette on at
        most N_FOR_K of the points (Rousseeuw 1987); the smallest k of equal ones.
        """
        from sklearn.metrics import pairwise_distances, silhouette_score

        drawn = np.random.default_rng(seed).permutation(len(self.points))[:N_FOR_K]
        sample = self.points[np.sort(drawn)]
        most = min(most, len(np.unique(sample, axis=0)) - 1)
        if most <= 2:
            return self._cut_into(2)
        distances = pairwise_distances(sample)
        np.fill_diagonal(distances, 0)  # rounding leaves small differences there
        score: dict[int, float] = {}
        for k in range(2, most + 1):
            label = self._cut_into(k)[np.sort(drawn)]
            if len(np.unique(label)) > 1:
                score[k] = float(silhouette_score(distances, label, metric="precomputed"))
        return self._cut_into(max(score, key=lambda k: score[k], default=2))

    def find_failing(self, errors: Floats, scan: Scan) -> list[Branch]:
        """Branches with more errors than the rest, without overlap, the clearest first.

        `errors` (n,) is NaN for points that do not count. A branch gains Kulldorff's statistic
        (1997, A spatial scan statistic): twice the log-likelihood ratio of one rate inside and
        another outside. Branches are chosen for the largest sum of their gains, less for each the
        gain that shuffled errors reach with probability `alpha`: so two failing parts of a branch
        are kept apart where what lies between them does not fail.
        """
        in_order = errors[self.order]
        counts = np.isfinite(in_order)
        values = in_order[counts]
        if len(values) < 2 * scan.least or values.min() == values.max():
            return []
        edges = np.concatenate([[0], np.cumsum(counts)])  # points that count before each place
        first, last = edges[self._starts], edges[self._starts + self._sizes]
        n_inside = last - first
        is_tested = (n_inside >= scan.least) & (n_inside <= len(values) - scan.least)
        first, last = first[is_tested], last[is_tested]
        largest = _shuffled_gains(values, first, last, scan)
        gain = np.zeros(len(is_tested))
        gain[is_tested] = _likelihood_gains(values, first, last)
        # as many shuffles reach the critical gain as make its p-value exceed alpha
        critical = largest[-int(scan.alpha * (len(largest) + 1))]
        return [
            Branch(
                np.sort(self.order[self._starts[node] :][: self._sizes[node]]),
                (1 + int((largest >= gain[node]).sum())) / (len(largest) + 1),
            )
            for node in self._choose_branches(gain - critical)
            if gain[node] > critical
        ]

    def _choose_branches(self, value: Floats) -> list[int]:
        """The disjoint nodes with the largest sum of positive values, the most valuable first."""
        n = len(self.points)
        best = np.maximum(value, 0)
        for node in range(n, len(best)):  # children precede their node
            left, right = self._children(node)
            best[node] = max(best[node], best[left] + best[right])
        chosen, open_nodes = [], [len(best) - 1]
        while open_nodes:
            node = open_nodes.pop()
            if best[node] <= 0:
                continue
            if value[node] >= best[node]:
                chosen.append(node)
            elif node >= n:
                open_nodes.extend(self._children(node))
        return sorted(chosen, key=lambda node: (-value[node], node))

    def _cut_into(self, k: int) -> Labels:
        from scipy.cluster.hierarchy import fcluster

        return np.asarray(fcluster(self._merges, k, criterion="maxclust"), dtype=np.int64) - 1

    def _find_spans(self) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.int64]]:
        """First place and number of points of every node: points, then merges."""
        n = len(self.points)
        sizes = np.concatenate([np.ones(n), self._merges[:, 3]]).astype(np.int64)
        starts = np.zeros(len(sizes), dtype=np.int64)
        for node in range(len(sizes) - 1, n - 1, -1):
            left, right = self._children(node)
            starts[left] = starts[node]
            starts[right] = starts[node] + sizes[left]
        return starts, sizes

    def _children(self, node: int) -> tuple[int, int]:
        left, right = self._merges[node - len(self.points), :2].astype(int)
        return int(left), int(right)


def scale_to_directions(points: Floats) -> Floats:
    """Rows centred and scaled to length 1, with each column's spread limited to
    MAX_RELATIVE_SPREAD medians, so that clusters follow meaning, not length: the features contain
    counts and grow with the length of a completion.
    """
    if not np.isfinite(points).all():
        raise InvalidScores(
            "An embedding is NaN or infinite. Check the encoder; no row is dropped silently."
        )
    spread = points.std(axis=0)
    most = MAX_RELATIVE_SPREAD * float(np.median(spread[spread > 0])) if (spread > 0).any() else 1.0
    centred = (points - points.mean(axis=0)) / np.maximum(spread / most, 1)
    length = np.linalg.norm(centred, axis=1, keepdims=True)
    return np.asarray(centred / np.where(length > 0, length, 1), dtype=np.float32)


def dissolve_remnants(points: Floats, label: Labels, branches: set[int], least: int) -> Labels:
    """Move points of clusters that a branch has left with fewer than `least` to the nearest other
    cluster; branches take none, since they were tested as they are.
    """
    if not branches:
        return label
    sizes = {int(one): int((label == one).sum()) for one in np.unique(label)}
    others = [one for one in sizes if one not in branches and sizes[one] >= least]
    small = [one for one in sizes if one not in branches and sizes[one] < least]
    if not others or not small:
        return label
    centres = np.stack([points[label == one].mean(axis=0) for one in others])
    moved = np.isin(label, small)
    nearest = np.linalg.norm(points[moved][:, None] - centres, axis=2).argmin(axis=1)
    label = label.copy()
    label[moved] = np.array(others)[nearest]
    return label


def measure_distances(points: Floats, label: Labels) -> tuple[Floats, float]:
    """Distance of each point to the centre of its cluster, and the share of variance explained."""
    _, place = np.unique(label, return_inverse=True)
    centres = np.stack([points[place == i].mean(axis=0) for i in range(int(place.max()) + 1)])
    distance = np.linalg.norm(points - centres[place], axis=1)
    total = float(((points - points.mean(axis=0)) ** 2).sum())
    return distance, 1 - float((distance**2).sum()) / total


def _shuffled_gains(values: Floats, first: Any, last: Any, scan: Scan) -> Floats:
    """The largest gain of any span in each shuffle of the values, ascending: what Westfall and
    Young (1993) adjust by.
    """
    rng = np.random.default_rng(scan.seed)
    largest = [
        _likelihood_gains(rng.permutation(values), first, last).max(initial=0.0)
        for _ in range(scan.n_permutations)
    ]
    return np.sort(np.array(largest))


def _likelihood_gains(values: Floats, first: Any, last: Any) -> Floats:
    """Twice the log-likelihood ratio of each span of `values`, 0 where its rate is not above that
    of the rest. Values in [0, 1] count as shares of a trial.
    """
    totals = np.concatenate([[0.0], np.cumsum(values)])
    n_inside = last - first
    inside = totals[last] - totals[first]
    n_outside, outside = len(values) - n_inside, totals[-1] - inside
    gain = 2 * (
        _log_likelihood(inside, n_inside)
        + _log_likelihood(outside, n_outside)
        - _log_likelihood(totals[-1], len(values))
    )
    return np.asarray(np.where(inside * n_outside > outside * n_inside, gain, 0.0))


def _log_likelihood(wrong: Any, n: Any) -> Any:
    from scipy.special import xlogy

    wrong = np.clip(wrong, 0, n)  # sums of shares may exceed n by rounding
    return xlogy(wrong, wrong / n) + xlogy(n - wrong, 1 - wrong / n)

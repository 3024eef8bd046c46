"""Divides points into the clusters of Ward's tree with the best mean silhouette."""

import numpy as np
import numpy.typing as npt

from rlhf_pipeline.core.errors import InvalidScores, NotEnoughData
from rlhf_pipeline.watch.drift.base import Floats

Labels = npt.NDArray[np.int64]

MAX_RELATIVE_SPREAD = 3  # largest spread of a column, in medians over the columns
N_FOR_K = 400  # points used to choose the number of clusters


def label_points(points: Floats, most: int, *, seed: int) -> Labels:
    """The labels 0 to k - 1 of the points (n, d), of the k from 2 to `most` with the highest mean
    silhouette on at most N_FOR_K of them (Rousseeuw 1987); the smallest k of equal ones.
    """
    from scipy.cluster.hierarchy import fcluster, ward
    from sklearn.metrics import silhouette_score

    if (points == points[0]).all():
        raise NotEnoughData(
            "No clusters: all embeddings are equal. Check that the encoder distinguishes texts."
        )
    tree = ward(points)
    sample = np.random.default_rng(seed).permutation(len(points))[:N_FOR_K]
    most = min(most, len(np.unique(points[sample], axis=0)) - 1)
    cuts = [np.asarray(fcluster(tree, k, "maxclust")) - 1 for k in range(2, max(2, most) + 1)]

    def score(label: Labels) -> float:
        is_divided = len(cuts) > 1 and len(np.unique(label[sample])) > 1
        return float(silhouette_score(points[sample], label[sample])) if is_divided else -1.0

    return max(cuts, key=score)


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


def measure_distances(points: Floats, label: Labels) -> tuple[Floats, float]:
    """Distance of each point to the centre of its cluster, and the share of variance explained."""
    _, place = np.unique(label, return_inverse=True)
    centres = np.stack([points[place == i].mean(axis=0) for i in range(int(place.max()) + 1)])
    distance = np.linalg.norm(points - centres[place], axis=1)
    total = float(((points - points.mean(axis=0)) ** 2).sum())
    return distance, 1 - float((distance**2).sum()) / total

"""Clusters the prompts of two windows by k-means; tests which grew, shrank or got worse.

Points are clustered without their windows, so under one distribution the
windows' shares in a cluster differ by chance alone, and an exact test of them holds whatever the
clusters are.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np
import numpy.typing as npt
import pandas as pd
from pydantic import Field

from rlhf_pipeline.drift.base import Floats
from rlhf_pipeline.drift.reference import LEFT_OUT, Window
from rlhf_pipeline.drift.two_sample import adjust_p_values, error_rate_rise
from rlhf_pipeline.drift.windows import WindowParams
from rlhf_pipeline.errors import InvalidScores, NotEnoughData
from rlhf_pipeline.intervals import interval_of_share
from rlhf_pipeline.records import Interval

Labels = npt.NDArray[np.int32]

MAX_RELATIVE_SPREAD = 3  # largest spread of a column, in medians over the columns
N_FOR_K = 400  # points used to choose the number of clusters
ORDER = {"grew": 0, "shrank": 1, "steady": 2}


class ClusterParams(WindowParams):
    """How many clusters, and when one has changed. The false discovery rate is `alpha`, as of all
    tests of a day.
    """

    prompts_per_cluster: int = Field(
        default=25,
        ge=5,
        description="Prompts of both windows per cluster; fewer make wide intervals",
    )
    max_clusters: int = Field(default=8, ge=2, le=26, description="Maximum number of clusters")
    min_in_cluster: int = Field(
        default=10,
        ge=5,
        description="Least prompts of a window in a cluster for an error rate",
    )
    share_effect: float = Field(
        default=0.05,
        gt=0,
        le=1,
        description="Least change of a cluster's share of the prompts that counts",
    )
    cluster_seed: int = Field(default=0, ge=0, description="Seed of k-means")


@dataclass(frozen=True)
class Cluster:
    """One kind of prompts. Errors are None below `min_in_cluster` prompts, p-values are adjusted
    over all clusters.

    `examples` are comparison ids nearest the centre, those of the current window first.
    """

    name: str
    share_reference: Interval
    share_current: Interval
    p_share: float
    change: Literal["grew", "shrank", "steady"]
    error_reference: Interval | None
    error_current: Interval | None
    p_error: float | None
    is_worse: bool
    examples: tuple[str, ...]

    @property
    def growth(self) -> float:
        return self.share_current.value - self.share_reference.value


@dataclass(frozen=True)
class SemanticClusters:
    """`clusters`: worse ones first, then those that grew, shrank, stayed. `p_value`: under the
    hypothesis that both windows have equal shares.
    """

    clusters: tuple[Cluster, ...]
    n_reference: int
    n_current: int
    p_value: float
    explained: float  # share of the points' variance that lies between the clusters


def semantic_clusters(
    reference: Window | None,
    current: Window | None,
    params: ClusterParams | None = None,
    *,
    n_examples: int = 3,
) -> SemanticClusters:
    """k-means over the embedded comparison of each prompt in both windows; the prompt's other
    comparisons go with it.

    k is the one of the best mean silhouette, from 2 to one cluster per `prompts_per_cluster`
    prompts of both windows and at most `max_clusters`. Each prompt counts once, its error being the
    mean over its comparisons, since comparisons of one prompt resemble each other. The order of
    rows does not matter. Raises NotEnoughData naming what is missing, InvalidScores for windows of
    two encoders.
    """
    params = params or ClusterParams()
    _refuse_missing_embeddings(reference, current)
    before, now = _embedded_prompts(reference), _embedded_prompts(current)
    _require_enough(before, now, params)
    assert reference is not None
    assert current is not None
    if reference.embeddings.shape[1] != current.embeddings.shape[1]:
        raise InvalidScores(
            f"Embeddings of {reference.embeddings.shape[1]} and {current.embeddings.shape[1]} "
            f"dimensions cannot be clustered together. Embed both with one encoder."
        )
    points = _directions(
        np.concatenate(
            [
                w.embeddings[rows["embedding_row"]]
                for w, rows in ((reference, before), (current, now))
            ]
        )
    )
    is_current = np.arange(len(points)) >= len(before)
    label, distance, explained = _k_means(points, params)
    rows = pd.concat([before, now], ignore_index=True).assign(
        is_current=is_current, label=label, distance=distance
    )
    return SemanticClusters(
        clusters=_compare_clusters(rows, params, n_examples),
        n_reference=len(before),
        n_current=len(now),
        p_value=_homogeneity_p(label, is_current),
        explained=explained,
    )


def _embedded_prompts(window: Window | None) -> pd.DataFrame:
    """One row per prompt with an embedding: comparison_id, embedding_row, and the mean error of all
    its comparisons.
    """
    if window is None:
        return pd.DataFrame({"comparison_id": [], "embedding_row": [], "error": []})
    rows = window.rows
    error = rows.groupby("prompt_id")["error"].mean()
    embedded = rows.loc[
        rows["embedding_row"] >= 0, ["comparison_id", "prompt_id", "embedding_row"]
    ].sort_values("comparison_id")
    return (
        embedded.assign(error=embedded["prompt_id"].map(error))
        .drop(columns="prompt_id")
        .reset_index(drop=True)
    )


def _refuse_missing_embeddings(*windows: Window | None) -> None:
    for why in (w.not_embedded for w in windows if w is not None):
        if why:
            raise NotEnoughData(f"{LEFT_OUT}{why}")


def _require_enough(before: pd.DataFrame, now: pd.DataFrame, params: ClusterParams) -> None:
    lacking = [
        f"the {name} window has {len(rows)} embedded prompts, {needed} are needed"
        for name, rows, needed in (
            ("reference", before, params.min_reference),
            ("day's", now, params.min_prompts),
        )
        if len(rows) < needed
    ]
    if lacking:
        raise NotEnoughData(
            f"No clusters: {'; '.join(lacking)}. Collect more votes, or lower min_prompts."
        )


def _directions(points: Floats) -> Floats:
    """Rows centred and scaled to length 1, with each column's spread limited to LOUDEST medians,
    so that clusters follow meaning, not length: the features contain counts and grow with the
    length of a completion.
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


def _k_means(points: Floats, params: ClusterParams) -> tuple[Labels, Floats, float]:
    """Label and distance to its centre of each point, and the share of variance explained."""
    from sklearn.cluster import KMeans

    if (points == points[0]).all():
        raise NotEnoughData(
            "No clusters: all embeddings are equal. Check that the encoder distinguishes texts."
        )
    fitted = KMeans(
        _choose_n_clusters(points, params), n_init=4, random_state=params.cluster_seed
    ).fit(points)
    distance = np.linalg.norm(points - fitted.cluster_centers_[fitted.labels_], axis=1)
    total = float(((points - points.mean(axis=0)) ** 2).sum())
    return fitted.labels_, distance, 1 - float((distance**2).sum()) / total


def _choose_n_clusters(points: Floats, params: ClusterParams) -> int:
    """The k of the highest mean silhouette on at most N_FOR_K of the points (Rousseeuw 1987); the
    smallest k of equal ones.
    """
    from sklearn.cluster import KMeans
    from sklearn.metrics import pairwise_distances, silhouette_score

    drawn = np.random.default_rng(params.cluster_seed).permutation(len(points))[:N_FOR_K]
    sample = points[np.sort(drawn)]
    n_different = len(np.unique(sample, axis=0))
    most = min(params.max_clusters, len(points) // params.prompts_per_cluster, n_different - 1)
    if most <= 2:
        return 2
    distances = pairwise_distances(sample)
    np.fill_diagonal(distances, 0)  # rounding leaves small differences there
    score: dict[int, float] = {}
    for k in range(2, most + 1):
        label = KMeans(k, n_init=1, random_state=params.cluster_seed).fit(sample).labels_
        score[k] = float(silhouette_score(distances, label, metric="precomputed"))
    return max(score, key=lambda k: score[k])


def _compare_clusters(
    rows: pd.DataFrame, params: ClusterParams, n_examples: int
) -> tuple[Cluster, ...]:
    by_size = (
        rows.groupby("label")["comparison_id"]
        .agg(["size", "min"])
        .sort_values(["size", "min"], ascending=[False, True])
    )
    parts = [rows[rows["label"] == label] for label in by_size.index]
    n_before, n_now = int((~rows["is_current"]).sum()), int(rows["is_current"].sum())
    counts = [(int((~part["is_current"]).sum()), int(part["is_current"].sum())) for part in parts]
    p_share = adjust_p_values(
        [_fisher_exact_p(before, n_before, now, n_now) for before, now in counts]
    )
    rises = [_error_rise(part, params.min_in_cluster) for part in parts]
    tested = [i for i, rise in enumerate(rises) if rise is not None]
    p_error = dict(
        zip(tested, adjust_p_values([rise[1] for rise in rises if rise is not None]), strict=True)
    )
    made = []
    for i, (part, (before, now), rise) in enumerate(zip(parts, counts, rises, strict=True)):
        growth = now / n_now - before / n_before
        is_moved = p_share[i] <= params.alpha and abs(growth) >= params.share_effect
        made.append(
            Cluster(
                name=chr(ord("A") + i),
                share_reference=interval_of_share(before / n_before, n_before),
                share_current=interval_of_share(now / n_now, n_now),
                p_share=p_share[i],
                change="steady" if not is_moved else "grew" if growth > 0 else "shrank",
                error_reference=_error_interval(part, False, params.min_in_cluster),
                error_current=_error_interval(part, True, params.min_in_cluster),
                p_error=p_error.get(i),
                is_worse=rise is not None
                and p_error[i] <= params.alpha
                and rise[0] >= params.error_effect,
                examples=_nearest_ids(part, n_examples),
            )
        )
    return tuple(
        sorted(made, key=lambda c: (not c.is_worse, ORDER[c.change], -abs(c.growth), c.name))
    )


def _error_interval(part: pd.DataFrame, is_current: bool, least: int) -> Interval | None:
    errors = part.loc[part["is_current"] == is_current, "error"]
    return interval_of_share(float(errors.mean()), len(errors)) if len(errors) >= least else None


def _error_rise(part: pd.DataFrame, least: int) -> tuple[float, float] | None:
    """Rise of the error rate and its p-value; None where one side is too small."""
    before, now = (
        part.loc[part["is_current"] == side, "error"].to_numpy(dtype=float)
        for side in (False, True)
    )
    if min(len(before), len(now)) < least:
        return None
    result = error_rate_rise(before, now)
    return result.effect, result.p_value


def _fisher_exact_p(before: int, n_before: int, now: int, n_now: int) -> float:
    from scipy.stats import fisher_exact

    return float(fisher_exact([[before, n_before - before], [now, n_now - now]]).pvalue)


def _homogeneity_p(label: Labels, is_current: npt.NDArray[np.bool_]) -> float:
    """Chi-squared test of the table cluster x window."""
    from scipy.stats import chi2_contingency

    return float(chi2_contingency(pd.crosstab(label, is_current).to_numpy()).pvalue)


def _nearest_ids(part: pd.DataFrame, n: int) -> tuple[str, ...]:
    ordered: Sequence[str] = part.sort_values(
        ["is_current", "distance", "comparison_id"], ascending=[False, True, True]
    )["comparison_id"].tolist()
    return tuple(dict.fromkeys(ordered))[:n]

"""Clusters the prompts of two windows; tests which fail, grew, shrank or got worse.

Points are clustered without their windows, so under one distribution the
windows' shares in a cluster differ by chance alone, and an exact test of them holds whatever the
clusters are. They are clustered without their errors too, so the tests of error rates hold as well.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from string import ascii_uppercase

import numpy as np
import numpy.typing as npt
import pandas as pd
from pydantic import Field

from rlhf_pipeline.core.errors import InvalidScores, NotEnoughData
from rlhf_pipeline.core.intervals import interval_of_ratio, interval_of_share
from rlhf_pipeline.core.records import Interval
from rlhf_pipeline.watch.drift.base import Floats
from rlhf_pipeline.watch.drift.cluster_history import DayClusters, PromptCluster
from rlhf_pipeline.watch.drift.cluster_terms import Terms, distinctive_terms, name_cluster
from rlhf_pipeline.watch.drift.reference import LEFT_OUT, Window
from rlhf_pipeline.watch.drift.two_sample import adjust_p_values, error_rate_rise
from rlhf_pipeline.watch.drift.windows import WindowParams

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
    max_clusters: int = Field(default=12, ge=2, le=26, description="Maximum number of clusters")
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
    cluster_days: int = Field(
        default=1,
        ge=1,
        le=28,
        description="Days up to the report's whose prompts are clustered; more where a day has "
        "few votes",
    )
    min_in_slice: int = Field(
        default=20, ge=5, description="Least comparisons in a slice for its error rate"
    )
    cluster_seed: int = Field(default=0, ge=0, description="Seed of samples and shuffles")


def semantic_clusters(
    reference: Window | None,
    current: Window | None,
    params: ClusterParams | None = None,
    *,
    day: str = "",
    prompts: Mapping[str, str] | None = None,
    n_examples: int = 3,
) -> DayClusters:
    """Ward's clusters of the embedded comparison of each prompt in both windows; the prompt's other
    comparisons go with it.

    Their number is that of the best mean silhouette, from 2 to one cluster per
    `prompts_per_cluster` prompts of both windows and at most `max_clusters`. Each prompt
    counts once, its error being the mean over its comparisons, since comparisons of one prompt
    resemble each other. `prompts` (comparison id -> text) name the clusters. The order of rows does
    not matter. Raises NotEnoughData naming what is missing, InvalidScores for windows of two
    encoders.
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
    points = scale_to_directions(
        np.concatenate(
            [
                w.embeddings[rows["embedding_row"]]
                for w, rows in ((reference, before), (current, now))
            ]
        )
    )
    is_current = np.arange(len(points)) >= len(before)
    rows = pd.concat([before, now], ignore_index=True).assign(is_current=is_current)
    most = min(params.max_clusters, len(points) // params.prompts_per_cluster)
    label = label_points(points, most, seed=params.cluster_seed)
    distance, explained = measure_distances(points, label)
    rows = rows.assign(label=label, distance=distance)
    parts = [
        _Part(
            rows=part,
            letter=ascii_uppercase[i % 26] * (i // 26 + 1),
            comparison_ids=_members(current, part),
        )
        for i, part in enumerate(_largest_first(rows))
    ]
    terms = distinctive_terms([part.texts(prompts or {}) for part in parts])
    return DayClusters(
        day=day,
        model_version=current.model_version,
        clusters=_compare_clusters(parts, terms, day, params, n_examples),
        n_reference=len(before),
        n_current=len(now),
        p_value=_homogeneity_p(label, is_current),
        explained=explained,
    )


@dataclass(frozen=True)
class _Part:
    """One cluster's prompts."""

    rows: pd.DataFrame
    letter: str
    comparison_ids: tuple[str, ...]

    @property
    def n_before(self) -> int:
        return int((~self.rows["is_current"]).sum())

    @property
    def n_now(self) -> int:
        return int(self.rows["is_current"].sum())

    def errors(self, is_current: bool) -> Floats:
        inside = self.rows["is_current"] == is_current
        return np.asarray(self.rows.loc[inside, "error"], dtype=float)

    def texts(self, prompts: Mapping[str, str]) -> list[str]:
        ids = sorted(self.rows["comparison_id"])
        return [prompts[comparison_id] for comparison_id in ids if comparison_id in prompts]


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


def _largest_first(rows: pd.DataFrame) -> list[pd.DataFrame]:
    by_size = (
        rows.groupby("label")["comparison_id"]
        .agg(["size", "min"])
        .sort_values(["size", "min"], ascending=[False, True])
    )
    return [rows[rows["label"] == label] for label in by_size.index]


def _members(current: Window, part: pd.DataFrame) -> tuple[str, ...]:
    """Every judged comparison of the part's prompts in the current window."""
    prompts = current.rows.set_index("comparison_id")["prompt_id"]
    inside = prompts[part.loc[part["is_current"], "comparison_id"]]
    return tuple(sorted(prompts.index[prompts.isin(inside)]))


def _compare_clusters(
    parts: Sequence[_Part],
    terms: Sequence[Terms],
    day: str,
    params: ClusterParams,
    n_examples: int,
) -> tuple[PromptCluster, ...]:
    n_before, n_now = sum(p.n_before for p in parts), sum(p.n_now for p in parts)
    p_share = adjust_p_values(
        [_fisher_exact_p(p.n_before, n_before, p.n_now, n_now) for p in parts]
    )
    rises = _adjusted_rises([(p.errors(False), p.errors(True)) for p in parts], params)
    today = [p.errors(True) for p in parts]
    rest = [_join([e for e in today if e is not own]) for own in today]
    lifts = _adjusted_rises(list(zip(rest, today, strict=True)), params)
    clusters = []
    for i, part in enumerate(parts):
        growth = part.n_now / n_now - part.n_before / n_before
        is_moved = p_share[i] <= params.alpha and abs(growth) >= params.share_effect
        rise, p_error = rises[i]
        excess, p_lift = lifts[i]
        clusters.append(
            PromptCluster(
                cluster_id=f"{day}-{part.letter}" if day else part.letter,
                name=name_cluster(terms[i]) or part.letter,
                terms=terms[i],
                share_reference=interval_of_share(part.n_before / n_before, n_before),
                share_current=interval_of_share(part.n_now / n_now, n_now),
                p_share=p_share[i],
                change="steady" if not is_moved else "grew" if growth > 0 else "shrank",
                error_reference=_error_interval(part.errors(False), params.min_in_cluster),
                error_current=_error_interval(today[i], params.min_in_cluster),
                p_error=p_error,
                is_worse=p_error is not None
                and p_error <= params.alpha
                and rise >= params.error_effect,
                lift=None
                if p_lift is None
                else interval_of_ratio(
                    float(today[i].mean()), len(today[i]), float(rest[i].mean()), len(rest[i])
                ),
                p_lift=p_lift,
                is_failing=p_lift is not None
                and p_lift <= params.alpha
                and excess >= params.error_effect,
                examples=_nearest_ids(part.rows, n_examples),
                comparison_ids=part.comparison_ids,
            )
        )
    return tuple(sorted(clusters, key=_rank))


def _rank(cluster: PromptCluster) -> tuple[bool, bool, int, float, str]:
    """Failing ones by the number of errors beyond the rest's rate, others by growth."""
    size = -abs(cluster.growth)
    if cluster.is_failing and cluster.error_current is not None:
        above = 1.0 if cluster.lift is None else 1 - 1 / cluster.lift.value
        size = -cluster.n_prompts * cluster.error_current.value * above
    return (
        not cluster.is_failing,
        not cluster.is_worse,
        ORDER[cluster.change],
        size,
        cluster.cluster_id,
    )


def _adjusted_rises(
    sides: Sequence[tuple[Floats, Floats]], params: ClusterParams
) -> list[tuple[float, float | None]]:
    """Rise of the second error rate over the first and its adjusted p-value; None where a side is
    too small.
    """
    least = params.min_in_cluster
    results = [
        error_rate_rise(before, now) if min(len(before), len(now)) >= least else None
        for before, now in sides
    ]
    adjusted = iter(adjust_p_values([r.p_value for r in results if r is not None]))
    return [(0.0, None) if r is None else (r.effect, next(adjusted)) for r in results]


def _error_interval(errors: Floats, least: int) -> Interval | None:
    return interval_of_share(float(errors.mean()), len(errors)) if len(errors) >= least else None


def _join(values: Sequence[Floats]) -> Floats:
    return np.concatenate(values) if values else np.zeros(0)


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

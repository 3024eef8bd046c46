"""Clusters of days, and their ids: one keeps the id of an earlier cluster with the same words."""

from collections.abc import Sequence
from typing import Literal

from pydantic import Field

from rlhf_pipeline.core.artefacts import Artefacts
from rlhf_pipeline.core.errors import NotFound
from rlhf_pipeline.core.records import Interval, Record
from rlhf_pipeline.watch.drift.cluster_terms import term_similarity


class ClusterDay(Record):
    """What a cluster of prompts was like on one day."""

    day: str
    n_prompts: int = Field(description="judged prompts of that day in the cluster")
    error: float | None = Field(description="their error rate; None below `min_in_cluster`")
    is_failing: bool


class PromptCluster(Record):
    """One kind of prompts in a day and in the model's reference. Errors and lift are None below
    `min_in_cluster` prompts, p-values are adjusted over all clusters.
    """

    cluster_id: str = Field(description="day on which it was first found, and a letter")
    name: str = Field(description="its most distinctive words; without texts, its letter")
    terms: dict[str, float] = Field(description="word -> weight by class-based TF-IDF")
    share_reference: Interval
    share_current: Interval
    p_share: float
    change: Literal["grew", "shrank", "steady"]
    error_reference: Interval | None
    error_current: Interval | None
    p_error: float | None = Field(description="of a rise over the reference")
    is_worse: bool
    lift: Interval | None = Field(
        description="the day's error rate in the cluster over that of the rest; None also where "
        "the rest has no errors"
    )
    p_lift: float | None
    is_failing: bool = Field(description="more errors than in the rest of the day")
    examples: tuple[str, ...] = Field(
        description="comparison ids nearest the centre, those of the day first"
    )
    comparison_ids: tuple[str, ...] = Field(description="judged comparisons of the day in it")
    trend: tuple[ClusterDay, ...] = Field(
        default=(), description="the days on which it was found, this one last"
    )

    @property
    def growth(self) -> float:
        return self.share_current.value - self.share_reference.value

    @property
    def n_prompts(self) -> int:
        """Judged prompts of the day."""
        return round(self.share_current.value * self.share_current.n)


class DayClusters(Record):
    """The clusters of a day: failing ones first, then those that got worse, grew, shrank, stayed.
    `p_value`: under the hypothesis that reference and day have equal shares.
    """

    day: str
    model_version: str
    clusters: tuple[PromptCluster, ...]
    n_reference: int
    n_current: int
    p_value: float
    explained: float = Field(description="share of the points' variance between the clusters")
    noise_ceiling: Interval | None = Field(
        default=None, description="noise ceiling of the day's votes; None if unknown"
    )


# Cosine of the terms. Of 400 prompts a day of the shipped template libraries, one topic's are at
# least 0.43, two topics' in 99 of 100 cases at most 0.30.
LEAST_SIMILARITY = 0.35
DAYS_FOLLOWED = 28  # earlier days in which a cluster is looked for, and days in its trend


def follow(today: DayClusters, earlier: Sequence[DayClusters]) -> DayClusters:
    """Give the clusters of a day the ids and the trend of the earlier clusters most similar to
    them, one to one; the others keep ids of their own.

    Words decide, not embeddings, so that a cluster outlives its reward model.
    """
    latest: dict[str, PromptCluster] = {}
    for day in sorted(earlier, key=lambda day: day.day)[-DAYS_FOLLOWED:]:
        if day.day < today.day:
            latest |= {cluster.cluster_id: cluster for cluster in day.clusters}
    pairs = sorted(
        (-term_similarity(mine.terms, old.terms), i, old.cluster_id)
        for i, mine in enumerate(today.clusters)
        for old in latest.values()
    )
    matched: dict[int, PromptCluster] = {}
    for similarity, i, cluster_id in pairs:
        if -similarity >= LEAST_SIMILARITY and i not in matched and cluster_id in latest:
            matched[i] = latest.pop(cluster_id)
    return today.model_copy(
        update={
            "clusters": tuple(
                _continue(mine, matched.get(i), today.day) for i, mine in enumerate(today.clusters)
            )
        }
    )


def _continue(mine: PromptCluster, old: PromptCluster | None, day: str) -> PromptCluster:
    error = mine.error_current
    today = ClusterDay(
        day=day,
        n_prompts=mine.n_prompts,
        error=None if error is None else error.value,
        is_failing=mine.is_failing,
    )
    if old is None:
        return mine.model_copy(update={"trend": (today,)})
    trend = (*old.trend, today)[-DAYS_FOLLOWED:]
    return mine.model_copy(update={"cluster_id": old.cluster_id, "trend": trend})


def find_failing_ids(days: Sequence[DayClusters]) -> set[str]:
    """Comparisons, of all `days`, in clusters that failed on the last day they were found."""
    latest: dict[str, bool] = {}
    members: dict[str, set[str]] = {}
    for day in sorted(days, key=lambda day: day.day):
        for cluster in day.clusters:
            latest[cluster.cluster_id] = cluster.is_failing
            members.setdefault(cluster.cluster_id, set()).update(cluster.comparison_ids)
    return {
        comparison_id
        for name, failed in latest.items()
        if failed
        for comparison_id in members[name]
    }


def find_cluster(
    files: Artefacts, cluster_id: str, day: str | None = None
) -> tuple[DayClusters, PromptCluster]:
    """The cluster as it was on `day`, by default on the last day on which it was found, after all
    clusters of that day. Raises NotFound.
    """
    # an id begins with the day on which the cluster was first found
    days = [d for d in files.report_days("clusters") if d >= cluster_id[:10] and day in (None, d)]
    for past_day in reversed(days):
        for day_clusters in files.read_reports("clusters", [past_day], DayClusters).values():
            for cluster in day_clusters.clusters:
                if cluster.cluster_id == cluster_id:
                    return day_clusters, cluster
    where = f" on {day}" if day else ""
    raise NotFound(
        f"No drift report found a cluster {cluster_id!r}{where}. The drift report of a day lists "
        "its clusters."
    )

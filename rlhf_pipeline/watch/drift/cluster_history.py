"""Follows clusters over days: a cluster keeps the id of an earlier one with the same words."""

from collections.abc import Sequence

from rlhf_pipeline.core.records import ClusterDay, DayClusters, PromptCluster
from rlhf_pipeline.watch.drift.cluster_terms import term_similarity

# Cosine of the terms. Of 400 prompts a day of the shipped template libraries, one topic's are at
# least 0.43, two topics' in 99 of 100 cases at most 0.30.
LEAST_SIMILARITY = 0.35
DAYS_FOLLOWED = 28  # earlier days in which a cluster is looked for, and days in its trend


def follow(found: DayClusters, earlier: Sequence[DayClusters]) -> DayClusters:
    """Give the clusters of a day the ids and the trend of the earlier clusters most similar to
    them, one to one; the others keep ids of their own.

    Words decide, not embeddings, so that a cluster outlives its reward model.
    """
    known: dict[str, PromptCluster] = {}
    for day in sorted(earlier, key=lambda one: one.day)[-DAYS_FOLLOWED:]:
        if day.day < found.day:
            known |= {cluster.cluster_id: cluster for cluster in day.clusters}
    pairs = sorted(
        (-term_similarity(mine.terms, old.terms), i, old.cluster_id)
        for i, mine in enumerate(found.clusters)
        for old in known.values()
    )
    matched: dict[int, PromptCluster] = {}
    for similarity, i, cluster_id in pairs:
        if -similarity >= LEAST_SIMILARITY and i not in matched and cluster_id in known:
            matched[i] = known.pop(cluster_id)
    return found.model_copy(
        update={
            "clusters": tuple(
                _continue(mine, matched.get(i), found.day) for i, mine in enumerate(found.clusters)
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
    for day in sorted(days, key=lambda one: one.day):
        for cluster in day.clusters:
            latest[cluster.cluster_id] = cluster.is_failing
            members.setdefault(cluster.cluster_id, set()).update(cluster.comparison_ids)
    return {one for name, failed in latest.items() if failed for one in members[name]}

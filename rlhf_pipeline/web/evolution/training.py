"""Finds the clusters of errors that a version learnt from, and what was predicted right since."""

from collections import Counter, defaultdict
from collections.abc import Collection, Iterable, Sequence
from datetime import date, timedelta

from rlhf_pipeline.drift.cluster_history import DAYS_FOLLOWED
from rlhf_pipeline.errors import MissingPartition, NotFound
from rlhf_pipeline.intervals import interval_of_share
from rlhf_pipeline.records import DayClusters, Interval, PromptCluster
from rlhf_pipeline.web.evolution.answers import (
    LearntCluster,
    PolicyVersionOut,
    RewardModelVersionOut,
    TrainingOut,
)
from rlhf_pipeline.web.evolution.queries import read_evolution
from rlhf_pipeline.web.site import Site

# Clusters of several days (`cluster_days`) share comparisons from day to day; a day with more than
# this share of comparisons that are counted already is left out. Fewer of them are repeats.
MOST_COUNTED_TWICE = 0.25


def find_version(site: Site, label: str) -> PolicyVersionOut | RewardModelVersionOut:
    """The version name@version. Raises NotFound."""
    evolution = read_evolution(site)
    versions: list[PolicyVersionOut | RewardModelVersionOut] = [
        *evolution.policies,
        *evolution.reward_models,
    ]
    for version in versions:
        if version.label == label:
            return version
    raise NotFound(f"There is no model {label!r}. `GET evolution` lists the versions by label.")


def describe_training(site: Site, version: PolicyVersionOut | RewardModelVersionOut) -> TrainingOut:
    changed_at = version.decision.changed_at if version.decision else None
    first = version.day - timedelta(days=DAYS_FOLLOWED - 1)
    began = max(first, changed_at.date()) if changed_at else first
    until = version.day + timedelta(days=DAYS_FOLLOWED)
    wanted = [day for day in site.files.cluster_days() if str(first) <= day <= str(until)]
    days = list(site.files.read_clusters(wanted).values())
    learnt_from: Iterable[str] | None = None
    served = None
    if isinstance(version, PolicyVersionOut):
        learnt_from = _read_pairs(site, version.training.data_hash if version.training else None)
    else:
        served = version.label
    known = learnt_from is None or bool(learnt_from)
    return TrainingOut(
        label=version.label,
        kind="policy" if isinstance(version, PolicyVersionOut) else "reward_model",
        day=version.day,
        since=began,
        until=until,
        training=version.training if isinstance(version, PolicyVersionOut) else None,
        data_seq=version.data_seq if isinstance(version, RewardModelVersionOut) else None,
        clusters=find_clusters(days, version.day, began, learnt_from, served) if known else (),
    )


def _read_pairs(site: Site, data_hash: str | None) -> list[str]:
    """Comparisons of a retraining set; none if it is unknown or retention deleted its file."""
    try:
        return [
            pair or ""
            for pair in (
                site.files.count_values("retraining_set", data_hash, "comparison_id")
                if data_hash
                else ()
            )
        ]
    except MissingPartition:
        return []


def find_clusters(
    days: Sequence[DayClusters],
    last: date,
    began: date,
    learnt_from: Iterable[str] | None = None,
    served: str | None = None,
) -> tuple[LearntCluster, ...]:
    """The clusters of `days` up to `last` that the comparisons `learnt_from` (None: all) were in,
    those that failed first, then by the number of these comparisons.

    A comparison counts in the cluster in which it was found last. Right before: on the days from
    `began` to `last`. Right since: on later days; with `served`, on those that this reward model
    had predicted.
    """
    # of each cluster, by its id
    before: dict[str, list[PromptCluster]] = defaultdict(list)
    since: dict[str, list[PromptCluster]] = defaultdict(list)
    earlier: dict[str, PromptCluster] = {}
    newest: dict[str, str] = {}
    members: dict[str, str] = {}
    unchanged: set[str] = set()  # a window of several days may reach back before the change
    for of in days:
        for one in of.clusters:
            newest[one.cluster_id] = one.name
            if of.day > last.isoformat():
                if served in (None, of.model_version):
                    since[one.cluster_id].append(one)
                continue
            earlier[one.cluster_id] = one
            members.update(dict.fromkeys(one.comparison_ids, one.cluster_id))
            if of.day < began.isoformat():
                unchanged.update(one.comparison_ids)
            else:
                before[one.cluster_id].append(one)
    learnt = members if learnt_from is None else learnt_from
    n_pairs = Counter(members[pair] for pair in learnt if pair in members)
    clusters = [
        LearntCluster(
            cluster_id=cluster_id,
            name=newest[cluster_id],
            is_failing=earlier[cluster_id].is_failing,
            n_pairs=n,
            right_before=_measure(before[cluster_id], unchanged),
            right_since=_measure(since[cluster_id], members),
        )
        for cluster_id, n in n_pairs.items()
    ]
    clusters.sort(key=lambda one: (not one.is_failing, -one.n_pairs, one.cluster_id))
    return tuple(clusters)


def _measure(days: Sequence[PromptCluster], counted: Collection[str]) -> Interval | None:
    """The share of judged prompts predicted right, over the days with enough prompts for an error
    rate, the oldest first; None without any.
    """
    seen: set[str] = set()
    n, n_right = 0, 0.0
    for one in days:
        error = one.error_current
        if error is None:
            continue
        pairs = set(one.comparison_ids)
        n_twice = len(pairs) - len(pairs.difference(counted).difference(seen))
        if n_twice > MOST_COUNTED_TWICE * len(pairs):
            continue
        seen |= pairs
        n += error.n
        n_right += error.n * (1 - error.value)
    return interval_of_share(n_right / n, n) if n else None

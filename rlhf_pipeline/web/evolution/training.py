"""Finds the clusters of errors that a version learnt from, and what is right since."""

from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
from datetime import date, timedelta

from rlhf_pipeline.core.errors import NotFound
from rlhf_pipeline.core.intervals import interval_of_share
from rlhf_pipeline.core.records import Interval
from rlhf_pipeline.watch.drift.cluster_history import DAYS_FOLLOWED, DayClusters, PromptCluster
from rlhf_pipeline.web.evolution.answers import (
    PolicyVersionOut,
    RewardModelVersionOut,
    TrainingCluster,
    TrainingOut,
    VersionFilter,
)
from rlhf_pipeline.web.evolution.queries import (
    Version,
    count_set,
    filter_versions,
    read_evolution,
)
from rlhf_pipeline.web.site import Site


def find_version(site: Site, label: str) -> Version:
    """The version name@version. Raises NotFound."""
    for version in filter_versions(read_evolution(site), VersionFilter()):
        if version.label == label:
            return version
    raise NotFound(f"There is no model {label!r}. `GET evolution` lists the versions by label.")


def describe_training(site: Site, version: Version) -> TrainingOut:
    changed_at = version.decision.changed_at if version.decision else None
    first = version.day - timedelta(days=DAYS_FOLLOWED - 1)
    began = max(first, changed_at.date()) if changed_at else first
    until = version.day + timedelta(days=DAYS_FOLLOWED)
    cluster_days = [
        day for day in site.files.report_days("clusters") if str(first) <= day <= str(until)
    ]
    days = list(site.files.read_reports("clusters", cluster_days, DayClusters).values())
    learnt_from: Mapping[str, int] | None = None
    served = None
    if isinstance(version, PolicyVersionOut):
        learnt_from = count_set(site, _find_set(version), "comparison_id")
    else:
        served = version.label
    has_pairs = learnt_from is None or bool(learnt_from)
    return TrainingOut(
        label=version.label,
        kind="policy" if isinstance(version, PolicyVersionOut) else "reward_model",
        day=version.day,
        since=began,
        until=until,
        training=version.training if isinstance(version, PolicyVersionOut) else None,
        data_seq=version.data_seq if isinstance(version, RewardModelVersionOut) else None,
        clusters=find_clusters(days, version.day, began, learnt_from, served) if has_pairs else (),
    )


def _find_set(version: Version) -> str | None:
    """The hash of the retraining set that a policy was trained on."""
    training = version.training if isinstance(version, PolicyVersionOut) else None
    return training.data_hash if training else None


def find_clusters(
    days: Sequence[DayClusters],
    last: date,
    began: date,
    learnt_from: Mapping[str, int] | None = None,
    served: str | None = None,
) -> tuple[TrainingCluster, ...]:
    """The clusters of `days` up to `last` that the comparisons `learnt_from` (pairs of each; None:
    all, once) were in, those that failed first, then by the number of these comparisons.

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
    for of in days:
        for cluster in of.clusters:
            newest[cluster.cluster_id] = cluster.name
            if of.day > last.isoformat():
                if served in (None, of.model_version):
                    since[cluster.cluster_id].append(cluster)
                continue
            earlier[cluster.cluster_id] = cluster
            members.update(dict.fromkeys(cluster.comparison_ids, cluster.cluster_id))
            if of.day >= began.isoformat():
                before[cluster.cluster_id].append(cluster)
    n_pairs: Counter[str] = Counter()
    for pair, n in (dict.fromkeys(members, 1) if learnt_from is None else learnt_from).items():
        if pair in members:
            n_pairs[members[pair]] += n
    clusters = [
        TrainingCluster(
            cluster_id=cluster_id,
            name=newest[cluster_id],
            is_failing=earlier[cluster_id].is_failing,
            n_pairs=n,
            right_before=_measure(before[cluster_id]),
            right_since=_measure(since[cluster_id]),
        )
        for cluster_id, n in n_pairs.items()
    ]
    clusters.sort(
        key=lambda cluster: (not cluster.is_failing, -cluster.n_pairs, cluster.cluster_id)
    )
    return tuple(clusters)


def _measure(days: Sequence[PromptCluster]) -> Interval | None:
    """The share of judged prompts predicted right, over the days with enough prompts for an error
    rate, the oldest first; None without any.
    """
    counted_ids: set[str] = set()
    errors: list[Interval] = []
    for cluster in days:
        # of a window of several days, only what the day before did not count
        is_new = 2 * len(counted_ids.intersection(cluster.comparison_ids)) < len(
            cluster.comparison_ids
        )
        if cluster.error_current is not None and is_new:
            counted_ids.update(cluster.comparison_ids)
            errors.append(cluster.error_current)
    n = sum(error.n for error in errors)
    return interval_of_share(sum(e.n * (1 - e.value) for e in errors) / n, n) if n else None

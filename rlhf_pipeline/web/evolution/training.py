"""Finds the pairs and clusters of errors a version learnt from, and what is right since."""

from collections import Counter, defaultdict
from collections.abc import Collection, Mapping, Sequence
from datetime import date, timedelta

from rlhf_pipeline.api_types.base import Page
from rlhf_pipeline.drift.cluster_history import DAYS_FOLLOWED
from rlhf_pipeline.errors import MissingPartition, NotFound
from rlhf_pipeline.intervals import interval_of_share
from rlhf_pipeline.records import DayClusters, Interval, PromptCluster
from rlhf_pipeline.web.evolution.answers import (
    LearntCluster,
    LearntPair,
    LearntPairFilter,
    PolicyVersionOut,
    RewardModelVersionOut,
    TrainingOut,
    VersionFilter,
)
from rlhf_pipeline.web.evolution.queries import (
    Version,
    count_set,
    filter_versions,
    read_evolution,
)
from rlhf_pipeline.web.lists import make_cursor, parse_cursor, plain_rows
from rlhf_pipeline.web.site import Site

# Clusters of several days (`cluster_days`) share comparisons from day to day; a day with more than
# this share of comparisons that are counted already is left out. Fewer of them are repeats.
MOST_COUNTED_TWICE = 0.25


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
    wanted = [day for day in site.files.cluster_days() if str(first) <= day <= str(until)]
    days = list(site.files.read_clusters(wanted).values())
    learnt_from: Mapping[str, int] | None = None
    served = None
    if isinstance(version, PolicyVersionOut):
        learnt_from = count_set(site, _find_set(version), "comparison_id")
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


def list_pairs(site: Site, version: Version, asked: LearntPairFilter) -> Page[LearntPair]:
    """The pairs of a policy's retraining set, in its order. None for a reward model, and for a set
    that is unknown or whose file retention deleted. Raises Problem 422 for an invalid cursor.
    """
    (first,) = parse_cursor(asked.cursor, int) or (0,)
    first = max(0, first)
    data_hash = _find_set(version)
    try:
        pairs = site.files.read_frame("retraining_set", data_hash) if data_hash else None
    except MissingPartition:
        pairs = None
    if pairs is None:
        return Page(items=(), next=None)
    page = pairs.iloc[first : first + asked.limit]
    known = site.store.comparisons.with_ids(list(page["comparison_id"]))
    categories = dict(zip(known["comparison_id"], known["category"], strict=True))
    rows = plain_rows(page[["comparison_id", "prompt", "origin", "reason"]])
    return Page(
        items=tuple(
            LearntPair(**row, category=categories.get(row["comparison_id"])) for row in rows
        ),
        next=make_cursor(first + asked.limit) if first + asked.limit < len(pairs) else None,
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
) -> tuple[LearntCluster, ...]:
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
    n_pairs: Counter[str] = Counter()
    for pair, n in (dict.fromkeys(members, 1) if learnt_from is None else learnt_from).items():
        if pair in members:
            n_pairs[members[pair]] += n
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

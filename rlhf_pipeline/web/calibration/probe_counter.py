"""Compares served predictions with a model's NEWEST votes, because no point holds a diagram."""

from dataclasses import dataclass

import pandas as pd

from rlhf_pipeline.core.api_types.filters import ProbeFilter
from rlhf_pipeline.core.errors import NotEnoughData
from rlhf_pipeline.feedback.votes.annotator_groups import MIN_ANNOTATORS, name_annotator_groups
from rlhf_pipeline.feedback.votes.counting import counting_votes
from rlhf_pipeline.improve.evaluation.probe import judged_rows, probe_groups, probe_model
from rlhf_pipeline.learn.calibration.group_calibration import MIN_PAIRS, Groups
from rlhf_pipeline.store import Store
from rlhf_pipeline.store.predictions import (
    find_newest_predictor,
    find_newest_voted,
    has_predicted,
)
from rlhf_pipeline.watch.reflection import reflect
from rlhf_pipeline.web.calibration.answers import ProbeOut

NEWEST = 1_000  # votes for a side: enough to know a share within three percentage points


@dataclass(frozen=True)
class ProbeResult:
    """The figures, and the rows that `pairs_of_bin` reads; None without any."""

    figures: ProbeOut
    rows: pd.DataFrame | None = None


def count_probe(store: Store, filters: ProbeFilter) -> ProbeResult:
    """Raises StoreError."""
    database, label = store.database, filters.reward_model or find_newest_predictor(store.database)
    nothing = ProbeOut(
        reward_model=label, calibrator=filters.calibrator, counted_at=database.clock.now()
    )
    if label is None or not has_predicted(database, label, filters.calibrator):
        return ProbeResult(nothing)
    ids, is_cut = find_newest_voted(
        database, label, filters.calibrator, since=filters.since, until=filters.until, limit=NEWEST
    )
    nothing = nothing.model_copy(update={"newest_only": is_cut})
    groups = store.comparisons.groups_of(ids)
    # among the newest votes: to find earlier ones of a rare group would take a scan
    for by, group in filters.comparison_groups.items():
        ids = [i for i in ids if groups[by].get(i) == group]
    if not ids:
        return ProbeResult(nothing)
    predicted = store.predictions.for_comparisons(ids)
    is_selected = predicted["reward_model"] == label
    if filters.calibrator is not None:
        is_selected &= predicted["calibrator"] == filters.calibrator
    votes = store.votes.log(comparison_ids=ids)
    counted = _select_votes(store, counting_votes(votes), filters)
    votes = _select_votes(store, votes, filters)
    reflections = reflect(predicted[is_selected], counted, strict=False)
    try:
        probe = probe_model(reflections, votes)
    except NotEnoughData:  # undone, or without a time
        return ProbeResult(nothing)
    rows = judged_rows(reflections)
    has_few_people = filters.group is not None and rows["annotator_id"].nunique() < MIN_ANNOTATORS
    if _selects(filters) and (probe.n_comparisons < MIN_PAIRS or has_few_people):
        return ProbeResult(nothing.model_copy(update={"is_withheld": True}))
    visible_groups = groups if filters.group is None else _drop_few_people(groups, rows)
    figures = {
        "n_votes": probe.n_votes,
        "n_comparisons": probe.n_comparisons,
        "accuracy": probe.metrics.accuracy,
        "noise_ceiling": probe.noise_ceiling,
        "binned_gap": probe.metrics.binned_gap,
        "ece": probe.metrics.ece,
        "slope": probe.metrics.slope,
        "brier": probe.metrics.brier,
        "raw_bins": probe.raw_bins,
        "bins": probe.bins,
        "by_group": ()
        if filters.comparison_groups
        else probe_groups(reflections, votes, visible_groups),
    }
    return ProbeResult(nothing.model_copy(update=figures), rows)


def _selects(filters: ProbeFilter) -> bool:
    return any((filters.category, filters.source, filters.group, filters.since, filters.until))


def _select_votes(store: Store, votes: pd.DataFrame, filters: ProbeFilter) -> pd.DataFrame:
    """Those of the chosen days and group of annotators."""
    if filters.since is not None:
        votes = votes[votes["day"] >= filters.since.isoformat()]
    if filters.until is not None:
        votes = votes[votes["day"] <= filters.until.isoformat()]
    if filters.group is None:
        return votes
    return votes[name_annotator_groups(votes, store.annotator_groups.all()) == filters.group]


def _drop_few_people(groups: Groups, rows: pd.DataFrame) -> Groups:
    """Without the groups of comparisons that fewer than MIN_ANNOTATORS people judged."""
    large_groups = {}
    for by, names in groups.items():
        n_people = rows.groupby(rows["comparison_id"].map(names))["annotator_id"].nunique()
        large = set(n_people.index[n_people >= MIN_ANNOTATORS])
        large_groups[by] = {
            comparison_id: name for comparison_id, name in names.items() if name in large
        }
    return large_groups

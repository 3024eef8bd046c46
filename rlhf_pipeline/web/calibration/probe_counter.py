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
    """The figures, and the judged rows that `pairs_of_bin` reads; None without any."""

    figures: ProbeOut
    judged: pd.DataFrame | None = None


def count_probe(store: Store, asked: ProbeFilter) -> ProbeResult:
    """Raises StoreError."""
    database, label = store.database, asked.reward_model or find_newest_predictor(store.database)
    nothing = ProbeOut(
        reward_model=label, calibrator=asked.calibrator, counted_at=database.clock.now()
    )
    if label is None or not has_predicted(database, label, asked.calibrator):
        return ProbeResult(nothing)
    ids, is_cut = find_newest_voted(
        database, label, asked.calibrator, since=asked.since, until=asked.until, limit=NEWEST
    )
    nothing = nothing.model_copy(update={"newest_only": is_cut})
    groups = store.comparisons.groups_of(ids)
    # among the newest votes: to find earlier ones of a rare group would take a scan
    for by, group in asked.comparison_groups.items():
        ids = [i for i in ids if groups[by].get(i) == group]
    if not ids:
        return ProbeResult(nothing)
    predicted = store.predictions.for_comparisons(ids)
    wanted = predicted["reward_model"] == label
    if asked.calibrator is not None:
        wanted &= predicted["calibrator"] == asked.calibrator
    votes = store.votes.log(comparison_ids=ids)
    counted = _select_votes(store, counting_votes(votes), asked)
    votes = _select_votes(store, votes, asked)
    reflections = reflect(predicted[wanted], counted, strict=False)
    try:
        found = probe_model(reflections, votes)
    except NotEnoughData:  # undone, or without a time
        return ProbeResult(nothing)
    judged = judged_rows(reflections)
    has_few_people = asked.group is not None and judged["annotator_id"].nunique() < MIN_ANNOTATORS
    if _selects(asked) and (found.n_comparisons < MIN_PAIRS or has_few_people):
        return ProbeResult(nothing.model_copy(update={"is_withheld": True}))
    shown = groups if asked.group is None else _drop_few_people(groups, judged)
    figures = {
        "n_votes": found.n_votes,
        "n_comparisons": found.n_comparisons,
        "accuracy": found.metrics.accuracy,
        "noise_ceiling": found.noise_ceiling,
        "ece": found.metrics.ece_equal_mass,
        "ece_debiased": found.metrics.ece_debiased,
        "slope": found.metrics.slope,
        "brier": found.metrics.brier,
        "raw_bins": found.raw_bins,
        "bins": found.bins,
        "by_group": () if asked.comparison_groups else probe_groups(reflections, votes, shown),
    }
    return ProbeResult(nothing.model_copy(update=figures), judged)


def _selects(asked: ProbeFilter) -> bool:
    return any((asked.category, asked.source, asked.group, asked.since, asked.until))


def _select_votes(store: Store, votes: pd.DataFrame, asked: ProbeFilter) -> pd.DataFrame:
    """Those of the chosen days and group of annotators."""
    if asked.since is not None:
        votes = votes[votes["day"] >= asked.since.isoformat()]
    if asked.until is not None:
        votes = votes[votes["day"] <= asked.until.isoformat()]
    if asked.group is None:
        return votes
    return votes[name_annotator_groups(votes, store.annotator_groups.all()) == asked.group]


def _drop_few_people(groups: Groups, judged: pd.DataFrame) -> Groups:
    """Without the groups of comparisons that fewer than MIN_ANNOTATORS people judged."""
    kept = {}
    for by, names in groups.items():
        n_people = judged.groupby(judged["comparison_id"].map(names))["annotator_id"].nunique()
        large = set(n_people.index[n_people >= MIN_ANNOTATORS])
        kept[by] = {one: name for one, name in names.items() if name in large}
    return kept

"""Preference pairs of all votes, by majority."""

from collections.abc import Iterator
from typing import Any

import dagster as dg
import pandas as pd
from pydantic import Field

from rlhf_pipeline.application.assets.delivery import (
    StageReport,
    deliver,
    expect_usually,
    make_rule,
    unpartitioned_asset,
)
from rlhf_pipeline.application.assets.retraining_decision import record_launch
from rlhf_pipeline.application.assets.votes import votes_up_to
from rlhf_pipeline.feedback.votes import (
    PairParams,
    TeachingRule,
    make_pairs,
    prompts_in_several_splits,
)
from rlhf_pipeline.registry import Registry
from rlhf_pipeline.reports.words import format_count
from rlhf_pipeline.store import Store

# Number of the last decision whose quarantine, or its end, the pairs follow.
LAST_DECISION = "last_decision"
DROPPED = (
    "n_ties",
    "n_only_ties",
    "n_without_majority",
    "n_repeats",
    "n_flagged",
    "n_gate",
    "n_machine",
    "n_quarantined",
    "n_overruled",
)


class PreferencePairsConfig(PairParams, dg.Config):
    """Rules of the majority, and the votes to use."""

    up_to_seq: int | None = Field(
        default=None,
        ge=0,
        description="Highest vote seq to use, as in a replay of imported days; empty = all votes",
    )


@unpartitioned_asset(
    "preference_pairs",
    "learn",
    "parquet",
    checks={
        "splits_are_disjoint": "No prompt is in two splits.",
        "agreement": "Annotators agree with the majority in 60 % of votes or more.",
        "side_balance": "The chosen completion is on each side in 30 % of pairs or more.",
    },
)
def preference_pairs(
    context: dg.AssetExecutionContext,
    config: PreferencePairsConfig,
    votes: pd.DataFrame,
    store: dg.ResourceParam[Store],
    registry: dg.ResourceParam[Registry],
) -> Iterator[Any]:
    """Pairs with the columns of TRL's preference type, and the comparison each came from. Ties give
    no pair.

    A comparison with votes on several days gives one pair, from all its votes.
    """
    if context.job_name == "retraining":  # its first stage
        record_launch(context, store)
    last_decision = max((decision.stored_id for decision in store.decisions.fires()), default=0)
    votes_until = votes_up_to(votes, config.up_to_seq)
    ids = votes_until["comparison_id"].unique().tolist()
    rule = TeachingRule.of(
        store.decisions.fires(), store.adjudications.standing(ids, up_to_seq=config.up_to_seq)
    )
    frame, counts = make_pairs(votes_until, store.comparisons.with_ids(ids), config, rule)
    divided = prompts_in_several_splits(frame)
    n_joined = frame["prompt"].nunique() - frame["prompt_id"].nunique()
    yield from deliver(
        context,
        registry,
        frame,
        StageReport(
            headline=f"{format_count(len(frame), 'pair')}; dropped {counts.n_only_ties} only ties, "
            f"{counts.n_without_majority} without a majority"
            + (
                f", {format_count(counts.n_flagged, 'vote')} on flagged comparisons"
                if counts.n_flagged
                else ""
            )
            + (f", {format_count(counts.n_gate, 'vote')} for the gate" if counts.n_gate else "")
            + (f", {counts.n_machine} machine votes" if counts.n_machine else "")
            + (
                f", {format_count(counts.n_quarantined, 'vote')} of quarantined annotators"
                if counts.n_quarantined
                else ""
            )
            + (
                f", {format_count(counts.n_overruled, 'vote')} against experts' decisions"
                if counts.n_overruled
                else ""
            )
            + (f"; {n_joined} prompts joined with equal ones" if n_joined > 0 else ""),
            metrics={
                "n_pairs": len(frame),
                **{name: getattr(counts, name) for name in DROPPED},
                LAST_DECISION: last_decision,
                "mean_agreement": frame["agreement"].mean() if len(frame) else None,
                "mean_margin": frame["margin"].mean() if len(frame) else None,
            },
            rows=frame[["prompt", "chosen", "rejected", "margin", "agreement"]],
        ),
        checks=[
            make_rule(
                "splits_are_disjoint",
                not divided,
                f"{len(divided)} prompts have pairs in several splits, first "
                f"{next(iter(divided), '')}: models are tested on prompts they were trained on. "
                "Import them again with one split or split_group per prompt.",
            )
        ],
        usual=[
            expect_usually(
                "agreement", "expect_column_mean_to_be_between", column="agreement", min_value=0.6
            ),
            expect_usually(
                "side_balance",
                "expect_column_values_to_not_be_in_set",
                column="chosen_side",
                value_set=["a"],
                mostly=0.3,
            ),
            expect_usually(
                "side_balance",
                "expect_column_values_to_not_be_in_set",
                column="chosen_side",
                value_set=["b"],
                mostly=0.3,
            ),
        ],
    )


def find_last_decision(instance: dg.DagsterInstance) -> int | None:
    """The last decision that the stored pairs follow; None where they do not say."""
    event = instance.get_latest_materialization_event(dg.AssetKey("preference_pairs"))
    materialization = event.asset_materialization if event else None
    numbers = materialization.metadata.get("numbers") if materialization else None
    figures = numbers.data if isinstance(numbers, dg.JsonMetadataValue) else None
    decision = figures.get(LAST_DECISION) if isinstance(figures, dict) else None
    return None if decision is None else int(decision)

"""Preference pairs of a day's votes: the majority's choice with its margin, ties dropped, agreement
kept.
"""

from collections.abc import Iterator
from typing import Any

import dagster as dg
import pandas as pd

from assets.delivery import (
    check_schema,
    daily_asset,
    deliver,
    describe_bounds,
    expect_usually,
    make_rule,
)
from rlhf_pipeline.frames import PREFERENCE_PAIRS, concat
from rlhf_pipeline.registry import Registry
from rlhf_pipeline.store import Store
from rlhf_pipeline.votes import PairCounts, PairParams, count_pairs, prompts_in_several_splits
from rlhf_pipeline.votes import preference_pairs as build


@describe_bounds
class PreferencePairsConfig(PairParams, dg.Config):
    """How votes become pairs."""


@dg.asset(**daily_asset("preference_pairs", "feedback", "parquet"))
@check_schema
def preference_pairs(
    context: dg.AssetExecutionContext,
    config: PreferencePairsConfig,
    votes: pd.DataFrame,
    store: dg.ResourceParam[Store],
    registry: dg.ResourceParam[Registry],
) -> Iterator[Any]:
    """Column for column TRL's preference type, with the comparison each pair came from. A tie is
    not a preference.

    A comparison that was judged on several days is counted on each with all its votes so far; the
    last day's pair counts.
    """
    days = [
        _build_day(votes[votes["day"] == day], day, store, config) for day in context.partition_keys
    ]
    frame = concat((pairs for pairs, _ in days), PREFERENCE_PAIRS)
    dropped = {
        name: sum(getattr(counts, name) for _, counts in days)
        for name in (
            "n_ties",
            "n_only_ties",
            "n_without_majority",
            "n_repeats",
            "n_flagged",
            "n_machine",
        )
    }
    divided = prompts_in_several_splits(frame)
    yield from deliver(
        context,
        registry,
        frame,
        checks=[
            make_rule(
                "no prompt is in two splits",
                not divided,
                f"{len(divided)} prompts have pairs in several splits, first "
                f"{next(iter(divided), '')}: what is learnt of them is judged on them too. Import "
                "them again with one split, or one split_group, a prompt.",
            )
        ],
        metrics={
            "n_pairs": len(frame),
            **dropped,
            "mean_agreement": frame["agreement"].mean() if len(frame) else None,
            "mean_margin": frame["margin"].mean() if len(frame) else None,
        },
        usual=[
            expect_usually("expect_column_mean_to_be_between", column="agreement", min_value=0.6),
            expect_usually(
                "expect_column_values_to_not_be_in_set",
                column="chosen_side",
                value_set=["a"],
                mostly=0.3,
            ),
            expect_usually(
                "expect_column_values_to_not_be_in_set",
                column="chosen_side",
                value_set=["b"],
                mostly=0.3,
            ),
        ],
        headline=f"{len(frame)} pairs; dropped {dropped['n_only_ties']} only ties, "
        f"{dropped['n_without_majority']} without a majority"
        + (f", {dropped['n_flagged']} votes on flagged comparisons" if dropped["n_flagged"] else "")
        + (f", {dropped['n_machine']} machine votes" if dropped["n_machine"] else ""),
        rows=frame[["prompt", "chosen", "rejected", "margin", "agreement"]],
    )


def _build_day(
    votes: pd.DataFrame, day: str, store: Store, config: PreferencePairsConfig
) -> tuple[pd.DataFrame, PairCounts]:
    """Pairs of the comparisons judged on `day`, from all their votes up to the last one of the
    day's votes.
    """
    judged = votes["comparison_id"].unique().tolist()
    all_votes = (
        store.votes.log(comparison_ids=judged, up_to_seq=int(votes["seq"].max()))
        if judged
        else votes
    )
    comparisons = store.comparisons.with_ids(judged)
    return build(all_votes, comparisons, config).assign(day=day), count_pairs(
        all_votes, comparisons, config
    )

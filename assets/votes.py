"""Votes of a day: people vote at any hour, an asset is a snapshot of their day up to one seq."""

from collections.abc import Iterator
from typing import Any

import dagster as dg
import pandas as pd
from pydantic import Field

from assets.delivery import (
    OWNERS,
    check_schema,
    daily_asset,
    deliver,
    describe_bounds,
    expect_usually,
)
from assets.partitions import DAYS
from rlhf_pipeline.registry import Registry
from rlhf_pipeline.store import Store
from rlhf_pipeline.votes import (
    agreement,
    ceilings,
    drop_machine_votes,
    latest_votes,
    noise_ceiling_or_repeats,
)
from rlhf_pipeline.votes.ceilings import MEASURES

CHANGE_SEQ_DESCRIPTION = (
    "First vote seq of one more change of taste, for this run alone; recorded "
    "changes count in any case"
)

votes_inbox = dg.AssetSpec(
    "votes_inbox",
    group_name="feedback",
    owners=OWNERS,
    kinds={"sqlite"},
    partitions_def=DAYS,
    description="Votes as they arrive in the store, from page, API, import or simulation. The "
    "votes sensor reports each touched day here.",
)


@describe_bounds
class VotesConfig(dg.Config):
    """Which moment of the store to take."""

    up_to_seq: int | None = Field(
        default=None, ge=0, description="Highest vote seq to include; empty = all there are now"
    )


@dg.asset(
    **daily_asset("votes", "feedback", "parquet", "sqlite"), deps=[votes_inbox, "comparisons"]
)
@check_schema
def votes(
    context: dg.AssetExecutionContext,
    config: VotesConfig,
    store: dg.ResourceParam[Store],
    registry: dg.ResourceParam[Registry],
) -> Iterator[Any]:
    """A snapshot: the same day up to the same seq gives the same rows. Superseded votes and earlier
    passes are left out.
    """
    days = list(context.partition_keys)
    frame = store.votes.snapshot(days, up_to_seq=config.up_to_seq)
    passes = store.votes.repeat_passes(days, up_to_seq=config.up_to_seq)
    agreed, ceiling, bounds = (
        agreement(frame, passes=passes),
        noise_ceiling_or_repeats(frame, passes=passes),
        ceilings(frame, passes=passes).iloc[0],
    )
    people = drop_machine_votes(frame)
    n_machine = len(frame) - len(people)
    yield from deliver(
        context,
        registry,
        frame,
        metrics={
            "n_votes": len(frame),
            "n_machine_votes": n_machine,
            "n_annotators": people["annotator_id"].nunique(),
            "n_ties": int((people["choice"] == "tie").sum()),
            "n_repeat_passes": len(passes),
            "raw_agreement": agreed.raw_agreement.value if agreed.raw_agreement else None,
            # from repeats alone it is `ceiling_from_repeats`
            "noise_ceiling": ceiling.value if ceiling and not ceiling.basis else None,
            "self_consistency": agreed.self_consistency.value if agreed.self_consistency else None,
        }
        | {
            f"ceiling_{name}": None if pd.isna(bounds[name]) else float(bounds[name])
            for name in MEASURES
        },
        usual=[
            expect_usually(
                "expect_column_values_to_be_in_set",
                column="choice",
                value_set=["a", "b"],
                mostly=0.5,
            ),
            expect_usually(
                "expect_column_values_to_not_be_in_set",
                column="choice",
                value_set=["a"],
                mostly=0.25,
            ),
            expect_usually(
                "expect_column_values_to_not_be_in_set",
                column="choice",
                value_set=["b"],
                mostly=0.25,
            ),
            expect_usually(
                "expect_column_unique_value_count_to_be_between", column="annotator_id", min_value=2
            ),
        ],
        headline=f"{len(people)} votes by {people['annotator_id'].nunique()} annotators, agreement "
        + str(agreed.raw_agreement or "unknown: nothing overlaps")
        + (f"; beside them {n_machine} machine votes" if n_machine else ""),
        rows=frame[["comparison_id", "annotator_id", "choice", "strength", "voted_at"]],
    )


def load_known_votes(votes: pd.DataFrame, store: Store, up_to_seq: int | None) -> pd.DataFrame:
    """VOTES of several days' snapshots, one of an annotator on a comparison; with a limit, as they
    stood at that seq.

    That is asked of the store: a snapshot that was taken later has lost what was changed above the
    limit.
    """
    if up_to_seq is None or votes.empty:
        return latest_votes(votes)
    last = votes["day"].max()
    days = [
        touched.day.isoformat()
        for touched in store.votes.touched_days()
        if touched.day.isoformat() <= last
    ]
    return latest_votes(store.votes.snapshot(days, up_to_seq=up_to_seq))


def load_known_passes(
    votes: pd.DataFrame, store: Store, up_to_seq: int | None = None, *, since_seq: int | None = None
) -> pd.DataFrame:
    """What those who cast VOTES said of the same comparisons before, as `agreement` takes it;
    without a limit up to the last of VOTES. `since_seq` leaves out what was said before it."""
    limit = up_to_seq if up_to_seq is not None or votes.empty else int(votes["seq"].max())
    return store.votes.repeat_passes(
        votes["day"].unique().tolist(), up_to_seq=limit, since_seq=since_seq
    )

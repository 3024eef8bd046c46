"""The reflection log of a day: every prediction, made before the vote, beside the vote that came."""

from collections.abc import Iterator
from typing import Any

import dagster as dg
import pandas as pd

from assets.delivery import daily, deliver, schema_checked, usually
from rlhf_pipeline.reflection import reflect
from rlhf_pipeline.registry import Registry
from rlhf_pipeline.store import Store


@dg.asset(**daily("reflection_log", "watch", "parquet", "sqlite"))
@schema_checked
def reflection_log(
    context: dg.AssetExecutionContext, votes: pd.DataFrame, store: dg.ResourceParam[Store], registry: dg.ResourceParam[Registry]
) -> Iterator[Any]:
    """Each row carries reward model, calibrator and data versions, raw and calibrated probability, and the human's vote."""
    days = list(context.partition_keys)
    made = store.predictions.for_days(days)
    voted_on = store.predictions.of(votes["comparison_id"].unique().tolist())
    predictions = pd.concat([made, voted_on]).drop_duplicates(["comparison_id", "reward_model"])
    # Votes on comparisons from before the first reward model have no prediction to stand beside.
    frame = reflect(predictions, votes, strict=False)
    frame = frame.assign(day=frame["vote_id"].map(votes.set_index("vote_id")["day"]).fillna(frame["day"]))
    frame = frame[frame["day"].isin(days)]
    judged = frame["is_error"].dropna().astype(float)
    yield from deliver(
        context,
        registry,
        frame,
        metrics={
            "n_rows": len(frame),
            "n_unvoted": int(frame["vote_id"].isna().sum()),
            "error_rate": judged.mean() if len(judged) else None,
        },
        usual=[
            usually("expect_column_mean_to_be_between", column="p_calibrated", min_value=0.3, max_value=0.7),
            usually("expect_column_values_to_not_be_null", column="vote_id", mostly=0.5),
        ],
        headline=f"{len(frame)} reflections, error rate {judged.mean():.3f}" if len(judged) else "no prediction met a vote yet",
        rows=frame[["comparison_id", "reward_model", "p_raw", "p_calibrated", "choice", "is_error"]],
    )

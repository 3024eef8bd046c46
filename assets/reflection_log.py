"""The reflection log of a day: each prediction with the later vote."""

from collections.abc import Iterator
from typing import Any

import dagster as dg
import pandas as pd
from pydantic import Field

from rlhf_pipeline.application.assets.delivery import (
    StageReport,
    daily_asset,
    deliver,
    expect_usually,
)
from rlhf_pipeline.application.assets.votes import load_earlier_votes
from rlhf_pipeline.core.errors import ModelNotFound
from rlhf_pipeline.core.frames import VOTES, concat
from rlhf_pipeline.core.protocols import Progress
from rlhf_pipeline.core.records import Interval, utc_now
from rlhf_pipeline.feedback.votes import noise_ceiling_or_repeats
from rlhf_pipeline.feedback.votes.counting import standing_votes
from rlhf_pipeline.learn.champions import CalibratedModel, Champions
from rlhf_pipeline.registry import Registry
from rlhf_pipeline.reports.words import format_count
from rlhf_pipeline.store import PredictionReplay, Store
from rlhf_pipeline.watch.reflection import predict, reflect

PREDICTIONS_PER_CHUNK = (
    2000  # comparisons per transaction; a killed replay resumes after the last one
)


class ReflectionConfig(dg.Config):
    """Whether to replay imported days."""

    is_replay: bool = Field(
        default=False,
        description="Let the champion predict the day's imported comparisons first; comparisons "
        "it may have been trained on are refused",
    )


@daily_asset(
    "reflection_log",
    "watch",
    "parquet",
    "sqlite",
    checks={
        "mean_probability": "Predictions favour neither side on average (0.3 to 0.7).",
        "has_votes": "Half of the predictions have a vote.",
    },
)
def reflection_log(
    context: dg.AssetExecutionContext,
    config: ReflectionConfig,
    votes: pd.DataFrame,
    champions: dg.ResourceParam[Champions],
    store: dg.ResourceParam[Store],
    registry: dg.ResourceParam[Registry],
    progress: dg.ResourceParam[Any],
) -> Iterator[Any]:
    """Predictions with versions of reward model, calibrator and data, raw and calibrated
    probability, and the vote.

    Predictions are made when a comparison is published. A comparison imported with its votes is
    predicted when its day is replayed, by the champion of that day, which was not trained on these
    votes.
    """
    days = list(context.partition_keys)
    replayed = PredictionReplay()
    judge = champions.judge() if config.is_replay else None
    if judge is not None:
        for day in days:
            replayed = replayed.add(_predict_again(day, judge, store, progress("reflection_log")))
    published = store.predictions.for_days(days)
    voted_on = store.predictions.for_comparisons(votes["comparison_id"].unique().tolist())
    predictions = pd.concat([published, voted_on]).drop_duplicates(
        ["comparison_id", "reward_model"]
    )
    # strict=False: comparisons older than the first reward model have no prediction. Day by day, so
    # that a day's file does not depend on the other days of the run.
    last_votes = concat((standing_votes(part) for _, part in votes.groupby("day")), VOTES)
    frame = reflect(predictions, last_votes, strict=False)
    frame = frame.assign(
        day=frame["vote_id"].map(votes.set_index("vote_id")["day"]).fillna(frame["day"])
    )
    frame = frame[frame["day"].isin(days)]
    errors = frame["is_error"].dropna().astype(float)
    ceiling = noise_ceiling_or_repeats(load_earlier_votes(votes, store))
    yield from deliver(
        context,
        registry,
        frame,
        StageReport(
            headline=f"{format_count(len(frame), 'reflection')}, error rate {errors.mean():.3f}, "
            f"{_describe_best_error_rate(ceiling)}"
            if len(errors)
            else "no votes on predicted comparisons yet",
            metrics={
                "n_rows": len(frame),
                "n_unvoted": int(frame["vote_id"].isna().sum()),
                **(
                    {
                        "error_rate": errors.mean(),
                        "noise_ceiling": ceiling.value if ceiling else None,
                    }
                    if len(errors)
                    else {}
                ),
                **(
                    {
                        "n_replayed": replayed.n_written,
                        "n_refused": replayed.n_refused,
                        "n_left_out": replayed.n_left_out,
                    }
                    if config.is_replay
                    else {}
                ),
            },
            rows=frame[
                ["comparison_id", "reward_model", "p_raw", "p_calibrated", "choice", "is_error"]
            ],
        ),
        usual=[
            expect_usually(
                "mean_probability",
                "expect_column_mean_to_be_between",
                column="p_calibrated",
                min_value=0.3,
                max_value=0.7,
            ),
            expect_usually(
                "has_votes", "expect_column_values_to_not_be_null", column="vote_id", mostly=0.5
            ),
        ],
    )


def _describe_best_error_rate(ceiling: Interval | None) -> str:
    """The noise ceiling as an error rate: that of always predicting the majority."""
    if ceiling is None:
        return "noise ceiling unknown (no overlapping or repeated votes)"
    least = ceiling.model_copy(
        update={"value": 1 - ceiling.value, "low": 1 - ceiling.high, "high": 1 - ceiling.low}
    )
    return f"at best {least}"


def _predict_again(
    day: str, judge: CalibratedModel, store: Store, progress: Progress
) -> PredictionReplay:
    """Write the champion's predictions of the imported comparisons first judged on `day`, as if
    made that morning.
    """
    data_seq = judge.version.data_seq
    if data_seq is None:
        raise ModelNotFound(
            f"{judge.label} has no data_seq, so its training votes are unknown. Fit a reward "
            f"model, then replay {day} again."
        )
    ids = store.predictions.find_unpredicted(day, data_seq=data_seq)
    replay = PredictionReplay(n_left_out=store.predictions.count_left_out(day, data_seq=data_seq))
    for start in range(0, len(ids), PREDICTIONS_PER_CHUNK):
        progress(start, len(ids))
        predicted = predict(
            store.comparisons.with_ids(ids[start : start + PREDICTIONS_PER_CHUNK]),
            judge.reward_model,
            judge.calibrator,
            reward_model_label=judge.label,
            calibrator_version=judge.calibrator_version,
            data_hash=judge.version.data_hash or "",
            predicted_at=utc_now(),
        )
        replay = replay.add(store.predictions.replay(predicted.assign(day=day), data_seq=data_seq))
    return replay

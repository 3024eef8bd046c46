"""Joins each prediction, made before the vote, with the annotators' later votes.

Calibration monitoring reads only these rows, and drift detectors read the same votes in the store
(`store.detectors`), so no model is evaluated on votes it was fitted to.
"""

import json
from datetime import datetime
from typing import Any

import numpy as np
import pandas as pd

from rlhf_pipeline.core.errors import UnknownComparison
from rlhf_pipeline.core.frames import COMPARISONS, PREDICTIONS, REFLECTIONS, VOTES, check_frame
from rlhf_pipeline.core.protocols import Progress, ignore_progress
from rlhf_pipeline.core.records import Choice, content_hash
from rlhf_pipeline.feedback.votes import drop_machine_votes
from rlhf_pipeline.learn.calibration import Calibrator
from rlhf_pipeline.learn.calibration.identity import NoCalibration
from rlhf_pipeline.learn.reward_model import RewardModel, preference_probability

VOTE_COLUMNS = [
    "seq",
    "vote_id",
    "annotator_id",
    "annotator_kind",
    "choice",
    "strength",
    "voted_at",
]


def predict(
    comparisons: pd.DataFrame,
    reward_model: RewardModel,
    calibrator: Calibrator | None = None,
    *,
    reward_model_label: str,
    calibrator_version: str,
    data_hash: str,
    predicted_at: datetime,
    progress: Progress = ignore_progress,
) -> pd.DataFrame:
    """One PREDICTIONS row per comparison. Without a calibrator, `p_calibrated` equals `p_raw`.

    `features_hash` covers the prompt and both completions as scored. Raises InvalidScores if a
    score is NaN.
    """
    checked = check_frame(comparisons, COMPARISONS)
    if checked.empty:
        return PREDICTIONS.empty_frame()
    n, prompts = len(checked), checked["prompt"].tolist()
    scores = reward_model.score(
        [*prompts, *prompts],
        [*checked["completion_a"], *checked["completion_b"]],
        progress=progress,
    )
    margins = scores[:n] - scores[n:]
    texts = zip(prompts, checked["completion_a"], checked["completion_b"], strict=True)
    predictions = checked[["day", "comparison_id"]].assign(
        reward_model=reward_model_label,
        calibrator=calibrator_version,
        data_hash=data_hash,
        features_hash=[content_hash(*row) for row in texts],
        score_a=scores[:n],
        score_b=scores[n:],
        p_raw=preference_probability(margins),
        p_calibrated=(calibrator or NoCalibration()).transform(margins),
        predicted_at=predicted_at,
    )
    return check_frame(predictions, PREDICTIONS)


def reflect(predictions: pd.DataFrame, votes: pd.DataFrame, *, strict: bool = True) -> pd.DataFrame:
    """Each prediction with each vote on its comparison, as REFLECTIONS rows by seq, unvoted rows
    last.

    A prediction without votes keeps one row without a vote. `is_error` is true if the vote prefers
    the side with the lower score; it is missing if the vote prefers neither side, has no time, or
    the scores are equal. Votes on repeats count; votes of machines are dropped, because a model
    that judges itself is always right. Raises UnknownComparison for a vote without a prediction, or
    drops such votes if `strict` is False.
    """
    predicted = check_frame(predictions, PREDICTIONS)
    voted = drop_machine_votes(check_frame(votes, VOTES))
    orphans = voted[~voted["comparison_id"].isin(predicted["comparison_id"])]
    if strict and not orphans.empty:
        row = orphans.iloc[0]
        raise UnknownComparison(
            f"Vote {row['vote_id']} judges comparison {row['comparison_id']}, for which no "
            f"prediction was logged ({len(orphans)} such votes). Predictions are written when a "
            "comparison is published; pass strict=False to leave these votes out."
        )
    rows = predicted.merge(voted[["comparison_id", *VOTE_COLUMNS]], on="comparison_id", how="left")
    rows["seq"], rows["strength"] = rows["seq"].astype("Int64"), rows["strength"].astype("Int64")
    rows = rows.assign(is_error=_mark_errors(rows))
    return check_frame(
        rows.sort_values(["seq", "comparison_id", "reward_model"], na_position="last"), REFLECTIONS
    )


def judged_predictions(reflections: pd.DataFrame) -> pd.DataFrame:
    """Monitoring input in order of seq: `seq, day, p, outcome, group, error` of every vote for a or
    b.

    `p` is the calibrated P(a preferred), `outcome` is 1 if a was preferred, `group` is the
    comparison, `error` is 1 if the vote prefers the lower score and 0 otherwise. Rows with equal
    scores predict no side and are dropped.
    """
    checked = check_frame(reflections, REFLECTIONS)
    sided = checked[checked["is_error"].notna()].sort_values("seq", ignore_index=True)
    return pd.DataFrame(
        {
            "seq": sided["seq"].astype("int64"),
            "day": sided["day"],
            "p": sided["p_calibrated"],
            "outcome": (sided["choice"] == Choice.A).astype("float64"),
            "group": sided["comparison_id"],
            "error": sided["is_error"].astype("float64"),
        }
    )


def served_predictions(reflections: pd.DataFrame) -> pd.DataFrame:
    """`judged_predictions` with a column reward_model and one row per vote, across champions.

    If several models predicted a comparison, the first one counts: it predicted at publication.
    """
    checked = check_frame(reflections, REFLECTIONS)
    first = (
        checked[checked["is_error"].notna()]
        .sort_values(["predicted_at", "reward_model"])
        .drop_duplicates("vote_id")
    )
    predictions = judged_predictions(first)
    return predictions.assign(
        reward_model=predictions["seq"].map(
            dict(zip(first["seq"].astype("int64"), first["reward_model"], strict=True))
        )
    )


def reflection_rows(reflections: pd.DataFrame) -> list[dict[str, Any]]:
    """The rows of `meta_reflection_log.jsonl`, JSON-ready: times in ISO 8601 UTC, missing values as
    null.
    """
    checked = check_frame(reflections, REFLECTIONS)
    rows: list[dict[str, Any]] = json.loads(
        checked.to_json(orient="records", date_format="iso", date_unit="us", double_precision=15)
    )
    return rows


def _mark_errors(rows: pd.DataFrame) -> pd.Series:
    gap = np.sign(rows["score_a"] - rows["score_b"])
    side = rows["choice"].map({Choice.A: 1.0, Choice.B: -1.0}).astype("float64")
    # A vote without a time has no place in the stream.
    decided = side.notna() & (gap != 0) & rows["voted_at"].notna()
    return (side != gap).astype("boolean").where(decided, pd.NA)

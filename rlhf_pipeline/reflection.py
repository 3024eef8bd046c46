"""Every prediction, made before the vote, beside the human's later vote. Knows frames; knows no
store and no schedule.

Drift and calibration are judged on these rows alone, so that no model is ever judged on votes it
was fitted to.
"""

import json
from datetime import datetime
from typing import Any

import numpy as np
import pandas as pd

from rlhf_pipeline.calibration import Calibrator
from rlhf_pipeline.calibration.identity import NoCalibration
from rlhf_pipeline.errors import UnknownComparison
from rlhf_pipeline.frames import COMPARISONS, PREDICTIONS, REFLECTIONS, VOTES, check_frame
from rlhf_pipeline.protocols import Progress, ignore_progress
from rlhf_pipeline.records import Choice, content_hash
from rlhf_pipeline.reward_model import RewardModel, preference_probability
from rlhf_pipeline.votes import drop_machine_votes

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
    """One PREDICTIONS row per comparison; without a calibrator both probabilities are the reward
    model's.

    `features_hash` is of the prompt and both completions as scored. Raises InvalidScores where a
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
    """Each prediction with each vote on its comparison: REFLECTIONS rows, in order of seq, unvoted
    ones last.

    No prediction is lost: one nobody voted on keeps a row without a vote. `is_error` says that the
    vote prefers the side with the lower score; it is missing where the vote prefers none or has no
    time, or the scores are equal. Votes on repeats are rows like any other; votes of machines are
    none, because a model that answers itself is always right. Raises UnknownComparison for a vote
    without a prediction, unless `strict` is off: then such votes are left out.
    """
    predicted, voted = (
        check_frame(predictions, PREDICTIONS),
        drop_machine_votes(check_frame(votes, VOTES)),
    )
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
    """What monitoring reads, in order of seq: `seq, day, p, outcome, group, error` of every vote
    for a or b.

    `p` is the calibrated P(a preferred), `outcome` 1 where a was, `group` the comparison, `error` 1
    where the vote went against the higher score and 0 where it went with it. Equal scores predict
    no side; their rows are left out.
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
    """`judged_predictions` with a column reward_model and one row per vote, whoever served that
    day.

    Of several models that predicted a comparison the first one counts: it predicted when the
    comparison was published.
    """
    checked = check_frame(reflections, REFLECTIONS)
    first = (
        checked[checked["is_error"].notna()]
        .sort_values(["predicted_at", "reward_model"])
        .drop_duplicates("vote_id")
    )
    judged = judged_predictions(first)
    return judged.assign(
        reward_model=judged["seq"].map(
            dict(zip(first["seq"].astype("int64"), first["reward_model"], strict=True))
        )
    )


def reflection_rows(reflections: pd.DataFrame) -> list[dict[str, Any]]:
    """The rows of `meta_reflection_log.jsonl`, JSON-ready: times in ISO 8601 UTC, what is missing
    as null.
    """
    checked = check_frame(reflections, REFLECTIONS)
    rows: list[dict[str, Any]] = json.loads(
        checked.to_json(orient="records", date_format="iso", date_unit="us", double_precision=15)
    )
    return rows


def _mark_errors(rows: pd.DataFrame) -> pd.Series:
    gap = np.sign(rows["score_a"] - rows["score_b"])
    side = rows["choice"].map({Choice.A: 1.0, Choice.B: -1.0}).astype("float64")
    # Nobody knows where in the stream a vote without a time belongs.
    decided = side.notna() & (gap != 0) & rows["voted_at"].notna()
    return (side != gap).astype("boolean").where(decided, pd.NA)

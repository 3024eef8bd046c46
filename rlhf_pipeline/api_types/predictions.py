"""Predictions of the reward model, their calibration, and completions made on request."""

from datetime import datetime
from typing import Annotated, Literal

from pydantic import Field

from rlhf_pipeline.api_types.base import MOST_IN_BATCH, Answer, LongText, Request
from rlhf_pipeline.records import (
    CalibrationReport,
    Choice,
    GroupCalibration,
    Interval,
    ReliabilityBin,
)

CalibratorState = Literal["serving", "standby", "replaced", "refused", "imported"]


class ToComplete(Request):
    """A prompt and how to sample its completion."""

    prompt: Annotated[LongText, Field(min_length=1, pattern=r"\S")]
    system: LongText | None = None
    temperature: float = Field(default=0.7, ge=0, le=2)
    top_p: float = Field(default=1.0, gt=0, le=1)
    max_tokens: int = Field(default=256, ge=1, le=32768)
    seed: int = Field(
        default=0,
        ge=0,
        le=2**31 - 1,
        description="Another seed gives another completion; the same seed returns the stored one.",
    )


class PairToPredict(Request):
    """Two completions of a prompt; they need not belong to this project."""

    prompt: LongText
    completion_a: LongText
    completion_b: LongText


class PairsToPredict(Request):
    pairs: list[PairToPredict] = Field(min_length=1, max_length=MOST_IN_BATCH)


class PredictionOut(Answer):
    p_raw: float = Field(
        ge=0,
        le=1,
        description="P(a preferred) by the reward model; 1 - p for the pair with its sides "
        "swapped.",
    )
    p_calibrated: float = Field(ge=0, le=1, description="P(a preferred) after calibration.")
    score_a: float
    score_b: float
    features_hash: str = Field(description="Hash of the texts as scored.")


class PredictionsOut(Answer):
    """Predictions in the order of the pairs, with the versions they are based on."""

    reward_model: str = Field(description="Reward model as name@version.")
    calibrator: str = Field(
        description="Calibrator version of that reward model; `none` before the first calibration."
    )
    data_hash: str | None = Field(description="Hash of the pairs the reward model was fitted on.")
    data_seq: int | None = Field(description="Highest sequence number among their votes.")
    predicted_at: datetime
    predictions: tuple[PredictionOut, ...]


class CalibrationOut(CalibrationReport):
    """One calibrator, measured on the test split it was fitted with, as it is logged."""

    version: int = Field(
        description="Number of the entry among those of its reward model; imported entries keep "
        "theirs as `calibrator_version`."
    )
    state: CalibratorState = Field(
        description="serving: used for the champion's predictions. standby: would be used if its "
        "reward model were champion. replaced: superseded by a later calibrator. refused: worse "
        "than its predecessor, never used. imported: a report without a calibrator."
    )


class ProbeOut(Answer):
    """Predictions made before their votes, compared with these votes. Without such predictions the
    figures are null and there are no bins.
    """

    reward_model: str | None = Field(description="Null before the first prediction.")
    calibrator: str | None = Field(
        description="The requested calibrator as method@version; null means all calibrators that "
        "the model predicted through."
    )
    n_votes: int = Field(description="Number of votes for a side that have a prediction.")
    n_comparisons: int
    newest_only: bool = Field(description="Whether only the newest votes are counted.")
    is_withheld: bool = Field(
        default=False,
        description="Whether the chosen votes are of too few comparisons or annotators.",
    )
    accuracy: Interval | None
    noise_ceiling: Interval | None = Field(
        description="Accuracy of a perfect model on the same comparisons; null if unknown."
    )
    ece: Interval | None
    ece_debiased: Interval | None
    slope: Interval | None
    brier: Interval | None
    raw_bins: tuple[ReliabilityBin, ...] = Field(
        default=(), description="The diagram before calibration, by the uncalibrated confidence."
    )
    bins: tuple[ReliabilityBin, ...]
    by_group: tuple[GroupCalibration, ...] = Field(
        default=(),
        description="The figures of each source and category before and after calibration; null "
        "for too few comparisons, and none where the request chooses a group.",
    )
    counted_at: datetime


class ProbedPair(Answer):
    """A vote with its prediction. Fields that the user may not read are null."""

    comparison_id: str
    seq: int
    p_raw: float = Field(description="P(a preferred) by the reward model.")
    p_calibrated: float = Field(description="P(a preferred) after calibration, as served.")
    prompt: str | None = Field(
        description="Only for users with `comparisons.read`, like both completions."
    )
    completion_a: str | None
    completion_b: str | None
    choice: Choice | None = Field(
        description="Only for users with `votes.read`, like annotator_id, strength and wrong."
    )
    strength: int | None
    annotator_id: str | None
    wrong: bool | None = Field(
        description="Whether the vote went against the higher score. Null too where `p_calibrated` "
        "is exactly 0.5: no side is predicted, and the vote counts half in its bin."
    )

"""Calibrators, predictions compared with later votes, and what a request chooses of them."""

from datetime import datetime
from typing import Annotated, Literal

from pydantic import Field

from rlhf_pipeline.core.api_types.base import Answer
from rlhf_pipeline.core.api_types.filters import Filter, GroupFilter, ProbeFilter, Value
from rlhf_pipeline.core.records import (
    CalibrationReport,
    Choice,
    GroupCalibration,
    Interval,
    ReliabilityBin,
)

CalibratorState = Literal["serving", "standby", "replaced", "refused", "imported"]
Confidence = Annotated[
    float, Field(ge=0.5, le=1, description="Stated confidence that lies in the bin.")
]


class CalibrationFilter(GroupFilter):
    """A reward model, one of its calibrators, later votes, and a dimension of the rubric."""

    version: int | None = Field(default=None, ge=1, lt=2**31)
    dimension: Value = None


class CalibrationPageFilter(CalibrationFilter, Filter):
    """The same, and a page of the log of calibrators."""


class CalibrationBinFilter(CalibrationPageFilter):
    """The same, and the votes of one bin."""

    bin: Confidence


class ProbedPairFilter(ProbeFilter, Filter):
    """Which votes in a bin of the diagram."""

    bin: Confidence


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
    n_votes: int = Field(
        default=0, description="Number of votes for a side that have a prediction."
    )
    n_comparisons: int = 0
    newest_only: bool = Field(
        default=False, description="Whether only the newest votes are counted."
    )
    is_withheld: bool = Field(
        default=False,
        description="Whether the chosen votes are of too few comparisons or annotators.",
    )
    accuracy: Interval | None = None
    noise_ceiling: Interval | None = Field(
        default=None,
        description="Accuracy of a perfect model on the same comparisons; null if unknown.",
    )
    binned_gap: Interval | None = None
    ece: Interval | None = None
    slope: Interval | None = None
    brier: Interval | None = None
    raw_bins: tuple[ReliabilityBin, ...] = Field(
        default=(), description="The diagram before calibration, by the uncalibrated confidence."
    )
    bins: tuple[ReliabilityBin, ...] = ()
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
        default=None, description="Only for users with `comparisons.read`, like both completions."
    )
    completion_a: str | None = None
    completion_b: str | None = None
    choice: Choice | None = Field(
        default=None,
        description="Only for users with `votes.read`, like annotator_id, strength and wrong.",
    )
    strength: int | None = None
    annotator_id: str | None = None
    wrong: bool | None = Field(
        default=None,
        description="Whether the vote went against the higher score. Null too where `p_calibrated` "
        "is exactly 0.5: no side is predicted, and the vote counts half in its bin.",
    )

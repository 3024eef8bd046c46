"""Records of experiments: two versions answer chats side by side, and how they compare."""

from datetime import UTC, datetime
from typing import Annotated, Any, Literal

from pydantic import AfterValidator, AwareDatetime, Field

from rlhf_pipeline.core.api_types.base import Name, RequestBody
from rlhf_pipeline.core.records import Interval, Record, Text

Arm = Literal["control", "treatment"]
ExperimentStatus = Literal["draft", "running", "paused", "completed", "cancelled"]
Winner = Literal["control", "treatment", "inconclusive"]
ExperimentMetric = Literal["satisfaction", "rating", "preference", "errors", "latency", "cost"]
LIVE: tuple[ExperimentStatus, ...] = ("running", "paused")
RAMP = (0.1, 0.5, 1.0)  # shares of the treatment, from the first step to the last
# what an experiment may become; a completed or cancelled one stays as it is
MOVES: dict[ExperimentStatus, tuple[ExperimentStatus, ...]] = {
    "draft": ("running", "cancelled"),
    "running": ("paused", "completed", "cancelled"),
    "paused": ("running", "completed", "cancelled"),
    "completed": (),
    "cancelled": (),
}


def _read_utc(end: datetime) -> datetime:
    try:
        return end.astimezone(UTC)
    except OverflowError:
        raise ValueError("is out of the range of dates") from None


Split = Annotated[float, Field(gt=0, le=1, description="Share of sessions of the treatment.")]
End = Annotated[
    AwareDatetime,
    AfterValidator(_read_utc),
    Field(description="When it ends by itself."),
]


class ExperimentAct(Record):
    """One line of an experiment's history."""

    at: datetime
    act: str
    actor: str
    reason: str = ""


class MetricEffect(Record):
    """One metric of both arms. Sessions count once each, with the mean of their answers; of
    `preference` either arm has the share of blind votes for it, a tie one half.
    """

    metric: ExperimentMetric
    control: float | None = Field(description="Mean over sessions; None without any.")
    treatment: float | None
    n_control: int
    n_treatment: int
    effect: Interval | None = Field(
        description="Treatment minus control, with an interval that holds at every look."
    )
    p_value: float | None = Field(description="Valid at every look.")
    better: Arm | None = Field(description="The arm that the interval names.")


class ReportedFigure(Record):
    """Mean of a figure that applications sent for both versions since the start; by day, so it has
    no interval that holds at every look.
    """

    metric: str
    control: float | None
    treatment: float | None


class ExperimentResults(Record):
    """How the arms compare."""

    n_control: int = Field(description="Sessions.")
    n_treatment: int
    n_planned: float = Field(description="Sessions of the treatment by the split.")
    split_p_value: float = Field(description="Of the observed split; valid at every look.")
    is_broken: bool = Field(description="The split is not the planned one: results mislead.")
    metrics: tuple[MetricEffect, ...]
    reported: tuple[ReportedFigure, ...] = ()
    winner: Winner
    recommendation: str

    def find(self, metric: ExperimentMetric) -> MetricEffect:
        return next(effect for effect in self.metrics if effect.metric == metric)


class Experiment(Record):
    """Two versions of a policy that answer chats: the control is the deployed one."""

    experiment_id: int
    name: str
    control_model_id: str
    treatment_model_id: str
    traffic_split: Split
    status: ExperimentStatus
    success_metric: ExperimentMetric = Field(description="Names the winner; fixed at the start.")
    salt: str = Field(description="Makes the assignment of sessions independent of others.")
    start_date: datetime | None = None
    end_date: datetime | None = Field(default=None, description="Planned, then actual.")
    winner: Winner | None = None
    results: ExperimentResults | None = Field(default=None, description="Those at its end.")
    acts: tuple[ExperimentAct, ...] = ()

    @property
    def is_live(self) -> bool:
        return self.status in LIVE


class ExperimentReport(Record):
    """An experiment with its present results; without any before its start."""

    experiment: Experiment
    results: ExperimentResults | None
    preference_note: str | None = Field(
        default=None,
        description="How many annotators cast the preference votes, and the most by one; or why "
        "there are none.",
    )


class NewExperiment(RequestBody):
    """Two versions to compare. The control is the deployed policy."""

    name: Name
    treatment_model_id: Name
    control_model_id: Name | None = Field(
        default=None, description="The deployed policy; naming another one is a conflict."
    )
    traffic_split: Split = RAMP[0]
    success_metric: ExperimentMetric = "satisfaction"
    end_date: End | None = None
    status: Literal["draft", "running"] = "running"


class ExperimentChange(RequestBody):
    """What to change. `status` completed ends it with a winner, cancelled without. The share of the
    treatment can only grow, so that its sessions keep their version.
    """

    status: Literal["running", "paused", "completed", "cancelled"] | None = None
    traffic_split: Split | None = None
    end_date: End | None = None
    reason: Annotated[Text, Field(max_length=1000)] = ""

    @property
    def fields(self) -> dict[str, Any]:
        return self.model_dump(include={"traffic_split", "end_date"}, exclude_none=True)

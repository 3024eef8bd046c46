"""Versions of policies and reward models: what the gate decided, why, and what they learnt from."""

from datetime import date
from typing import Annotated, Literal

from pydantic import Field, computed_field

from rlhf_pipeline.core.api_types.base import Answer
from rlhf_pipeline.core.api_types.filters import Filter
from rlhf_pipeline.core.api_types.project import DecisionOut
from rlhf_pipeline.core.records import Interval, Text
from rlhf_pipeline.improve.gate_sessions import GateProgress
from rlhf_pipeline.web.calibration.answers import CalibrationOut
from rlhf_pipeline.web.decisions.answers import GateOut, PromotionOut

DAY = (
    "Day of the gate's last decision on it; without one, of its last promotion, else of the fit of "
    "its calibrator. Where it is more than a day after the votes that the champion reward model "
    "knew, as in a replay, the day of the newest of these."
)

VersionLabel = Annotated[
    Text, Field(max_length=200, description="A version, such as demo.policy@3.")
]


class VersionFilter(Filter):
    """Which versions of models."""

    kind: Literal["policy", "reward_model"] | None = None


class PolicyTraining(Answer):
    """What a policy was trained on."""

    parent: str | None = Field(description="The policy it was trained from, as name@version.")
    strategy: str | None
    dataset: str | None = Field(description="Curated data set of it, as name@version.")
    dataset_id: int | None = Field(description="Null without one, or if it is unknown.")
    data_hash: str | None = Field(description="Hash of its retraining set.")
    n_pairs: int | None = Field(description="Null if the file of that set is not kept any more.")
    by_origin: dict[str, int] = Field(
        description="Pairs by who says which completion is better: `vote`, or `relabelled` and "
        "`hard_negative` by the reward model, or `dataset` by a curated data set."
    )


class TrainingCluster(Answer):
    """A cluster of errors that a version learnt from, and what was predicted right in it."""

    cluster_id: str
    name: str = Field(description="Its most distinctive words, when it was last found.")
    is_failing: bool = Field(
        description="Whether it had more errors than the rest when it was last found before the "
        "version."
    )
    n_pairs: int = Field(
        description="Pairs of the retraining set that came from it; for a reward model, its judged "
        "comparisons until then. Each counts in the cluster in which it was found last."
    )
    right_before: Interval | None = Field(
        description="Share of its judged prompts whose votes the reward model of each day "
        "predicted right, from `since` to `day`. Null if no day had enough prompts for an error "
        "rate."
    )
    right_since: Interval | None = Field(
        description="The same after `day`; for a reward model, on days that it predicted."
    )


class TrainingOut(Answer):
    """What a version learnt from, and what was predicted right since."""

    label: str
    kind: Literal["policy", "reward_model"]
    day: date = Field(description="Day of the version, as `GET evolution` states it.")
    since: date = Field(
        description="First day of `right_before`: that of the change which the decision behind the "
        "version answers, at most 28 days before it."
    )
    until: date = Field(description="Last day of `right_since`, 28 days after the version.")
    training: PolicyTraining | None = Field(
        description="Null for a reward model, and for a policy whose training is not recorded."
    )
    data_seq: int | None = Field(
        description="Number of the last vote that a reward model may have learnt from; null if it "
        "is not recorded, and for a policy."
    )
    clusters: tuple[TrainingCluster, ...] = Field(
        description="Of these days. Empty where there are none, or the retraining set is unknown."
    )


class VersionOut(Answer):
    version: int
    label: str
    state: str
    day: date = Field(description=DAY)
    promotion: PromotionOut | None
    decision: DecisionOut | None = Field(
        description="The retraining decision that started it; null if none is recorded."
    )


class PolicyVersionOut(VersionOut):
    state: Literal["champion", "earlier champion", "refused", "promoted", "asked about", "void"] = (
        Field(
            description="`promoted`: the gate let it through, but it was not made champion. `asked "
            "about`: people's votes will decide. `void`: they were asked, and nothing was decided."
        )
    )
    why_void: str = Field(default="", description="Why people were asked for nothing.")
    gate: GateOut | None = Field(description="Null for a policy that no gate decided on.")
    training: PolicyTraining | None = Field(
        description="Null for first policies and for gate decisions that did not record it."
    )
    has_report: bool = Field(description="Whether its evaluation can be read as a page.")
    compared_with: tuple[int, ...] = Field(
        description="Versions with completions of the same prompts, from its own evaluation."
    )


class RewardModelVersionOut(VersionOut):
    state: Literal["champion", "earlier champion", "refused", "not promoted"]
    calibration: CalibrationOut | None = Field(description="Its newest calibrator made here.")
    data_seq: int | None = Field(
        description="Number of the last vote that it may have learnt from; null if it is not "
        "recorded."
    )
    served: Interval | None = Field(
        default=None,
        description="Share of votes that it had predicted right before they were cast, over the "
        "last calibration window of its predictions.",
    )
    served_ceiling: Interval | None = Field(
        default=None,
        description="Noise ceiling of the votes on the comparisons of that window; null if it is "
        "unknown.",
    )
    served_until: date | None = Field(default=None, description="Last day of that window.")


class GateSessionOut(GateProgress):
    """How far the gate is that asks people about a candidate."""

    @computed_field  # type: ignore[prop-decorator]
    @property
    def half_width(self) -> float:
        return super().half_width


class EvolutionOut(Answer):
    """All versions that the gate decided on or that were champion, the newest first."""

    asking: GateSessionOut | None = Field(
        description="The candidate that the gate asks people about; null if it asks nobody."
    )

    policies: tuple[PolicyVersionOut, ...]
    reward_models: tuple[RewardModelVersionOut, ...]

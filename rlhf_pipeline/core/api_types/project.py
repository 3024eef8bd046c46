"""What clients read of a project: accounts, figures, comparisons, decisions and predictions."""

from datetime import date, datetime
from typing import Literal

from pydantic import Field

from rlhf_pipeline.core.api_types.base import Answer, LongText, RequestBody
from rlhf_pipeline.core.records import Quarantine, Remedy, Role

CHANGED_AT = "`voted_at` of the vote at which the change is dated."


class PairToPredict(RequestBody):
    """Two completions of a prompt; they need not belong to this project."""

    prompt: LongText
    completion_a: LongText
    completion_b: LongText


class Prediction(Answer):
    """Which of two completions people would probably prefer."""

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


class PredictionBasis(Answer):
    """The versions that predictions are based on."""

    reward_model: str = Field(description="Reward model as name@version.")
    calibrator: str = Field(
        description="Calibrator version of that reward model; `none` before the first calibration."
    )
    data_hash: str | None = Field(description="Hash of the pairs the reward model was fitted on.")
    data_seq: int | None = Field(description="Highest sequence number among their votes.")
    predicted_at: datetime


class PairPrediction(PredictionBasis, Prediction):
    """The completion people would probably prefer, and the basis of the prediction."""


class Predictions(PredictionBasis):
    """Predictions in the order of the pairs, with the versions they are based on."""

    predictions: tuple[Prediction, ...]


class ComparisonOut(Answer):
    comparison_id: str
    day: date
    prompt_id: str
    prompt: str
    completion_a: str
    completion_b: str
    category: str
    source: str | None = Field(description="Null if the comparison was not imported.")
    flag: str | None
    names_maker: bool = Field(description="Whether a completion names the model that wrote it.")
    model_version_a: str
    model_version_b: str
    gold: str | None = Field(description="The known answer.")
    n_wanted: int = Field(description="Number of judgements requested from people.")
    n_done: int = Field(description="Number of requested judgements that are done.")


class Offered(Answer):
    n_comparisons: int
    n_wanted: int = Field(description="Number of judgements newly wanted.")


class Withdrawn(Answer):
    n_withdrawn: int = Field(description="Number of open judgements withdrawn; leased cards stay.")


class DecisionOut(Answer):
    """One decision of the retraining trigger or of a person."""

    decision_id: int
    decided_at: datetime
    action: Literal["fire", "hold"]
    state: str = Field(description="State in words; `waits for a person` until it is answered.")
    summary: str = Field(description="Cause, its probability, and what became of it.")
    reasons: tuple[str, ...]
    remedy: Remedy | None
    cause: str | None = Field(description="The likeliest cause; null if none was examined.")
    cause_probability: float | None
    quarantine: Quarantine | None = Field(
        description="Annotators whose votes are left out, or would be if a person agrees."
    )
    change_seq: int | None
    changed_at: datetime | None = Field(description=CHANGED_AT)
    known_seq: int | None = Field(description="The last vote that the decision knew.")
    n_events: int
    run_id: str | None
    actor: str | None = Field(description="Who decided by hand; null for the trigger.")
    answers: int | None = Field(description="The decision that this one answers.")
    answered_by: int | None = Field(description="The decision that answers this one.")
    actions: tuple[Literal["answer", "lift", "keep"], ...] = Field(
        description="What a person may do about it now."
    )


class Me(Answer):
    user_id: str
    name: str
    email: str
    roles: tuple[Role, ...]
    permissions: tuple[str, ...]
    project: str


class Metrics(Answer):
    votes: int
    machine_votes: int
    votes_today: int
    skips: int
    annotators: int
    comparisons: int
    offered: int
    wanted: int
    done: int
    leased: int
    open: int
    feedback: dict[str, int]
    audit_links: int
    guideline_version: int | None
    rules_version: int

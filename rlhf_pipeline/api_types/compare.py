"""Two policy versions on the same prompts: completions, scores and which one is right."""

from pydantic import Field

from rlhf_pipeline.api_types.base import Answer, Page
from rlhf_pipeline.monitoring import MetricPoint
from rlhf_pipeline.records import DimensionComparison, Interval


class ComparedPrompt(Answer):
    """Completions of one prompt by both versions. Scores are logits of the reward model."""

    prompt_id: str
    prompt: str
    category: str
    sample_index: int
    completion_a: str
    completion_b: str
    score_a: float
    score_b: float
    difference: float = Field(description="`score_b` minus `score_a`.")
    p_b: float | None = Field(description="Calibrated probability that a person prefers b.")
    right_a: bool | None = Field(description="Null if the prompt has no checkable answer.")
    right_b: bool | None


class ComparedVersions(Page[ComparedPrompt]):
    """One page of the prompts, and figures of all prompts that match the filters."""

    a: str = Field(description="Policy version as name@version.")
    b: str
    reward_model: str = Field(description="What scored.")
    evaluation_set: int | None
    win_rate: Interval = Field(
        description="Of b against a over all prompts, as the evaluation measured it."
    )
    dimensions: tuple[DimensionComparison, ...] = Field(
        description="Of b against a over all prompts, as heads of the reward model estimate it; "
        "empty where votes judge no dimensions of the rubric."
    )
    points: tuple[MetricPoint, ...] = Field(
        description="The newest metric points `policy.*` and `production.*` of either version, "
        "whatever the filters."
    )
    categories: tuple[str, ...]
    n_rows: int = Field(description="Prompts, times samples of each, that match the filters.")
    n_better_a: int = Field(description="Of these, where a has the higher score.")
    n_better_b: int
    n_same: int = Field(description="Of these, where both completions are the same text.")

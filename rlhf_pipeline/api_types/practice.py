"""Types of the practice round of a new annotator."""

from typing import Literal

from pydantic import Field

from rlhf_pipeline.api_types.base import Answer
from rlhf_pipeline.api_types.votes import RulesShown


class PracticeCardOut(Answer):
    """A comparison with a known answer, its completions on drawn sides."""

    comparison_id: str
    prompt: str
    left: str
    right: str


class PracticeOut(Answer):
    """What a new annotator does before the first vote."""

    guideline_version: int | None
    rules: RulesShown
    cards: tuple[PracticeCardOut, ...] = Field(
        description="What is left of your round: up to four comparisons. It takes one of four gold "
        "ones; the others are of checkable prompts, with one right completion and one wrong."
    )


class PracticeAnswer(Answer):
    choice: Literal["a", "b", "tie"] = Field(description="The known answer; a is the left side.")
    reason: str | None = Field(
        default=None, description="Why it is the right one, where that is known."
    )

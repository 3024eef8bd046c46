"""Two days side by side: figures, and the comparisons on which model and people disagreed."""

from datetime import date

from pydantic import Field

from rlhf_pipeline.api_types.base import Answer, Page
from rlhf_pipeline.records import Interval, Verdict


class ComparedDay(Answer):
    """One of the two days."""

    day: date
    n_votes: int = Field(description="People's votes of the day that count now, skips included.")
    n_comparisons: int = Field(description="Comparisons that people judged on the day.")
    by_category: dict[str, int] = Field(description="The same votes by category of the prompt.")
    reward_models: tuple[str, ...] = Field(
        description="Models that predicted these comparisons before the votes."
    )
    policy: str | None = Field(description="Policy that completed the day's prompts.")
    verdict: Verdict | None = Field(description="Of the day's drift report; null without one.")
    newest_only: bool = Field(
        description="The comparisons are those of the newest votes of a very large day."
    )


class ComparedFigure(Answer):
    """One figure on both days; null on a day that has none."""

    name: str = Field(description="Name of the metric point or of the measure of preferences.")
    label: str
    unit: str = Field(description="`share`, or the unit of the values.")
    earlier: Interval | None
    later: Interval | None
    difference: Interval | None = Field(
        description="`later` minus `earlier`; null for figures of calibration windows, which may "
        "share votes."
    )


class DayComparison(Answer):
    """A comparison that people judged on one of the days, with the prediction made before."""

    day: date
    comparison_id: str
    prompt_id: str
    category: str
    is_on_both: bool = Field(description="People judged this prompt on both days.")
    n_a: int = Field(description="People's votes for a that count now.")
    n_b: int
    n_neither: int = Field(description="Votes for `tie` and `both_bad`.")
    reward_model: str | None = Field(description="Null if no model predicted the comparison.")
    score_a: float | None
    score_b: float | None
    p_a: float | None = Field(description="Calibrated probability that a person prefers a.")
    disagreement: float | None = Field(
        description="Distance of `p_a` from the share of votes for a among those for a side."
    )
    prompt: str | None = Field(description="Null without the permission `comparisons.read`.")
    completion_a: str | None
    completion_b: str | None


class ComparedDays(Page[DayComparison]):
    """One page of the comparisons that match the filters, and figures of the whole days."""

    earlier: ComparedDay
    later: ComparedDay
    figures: tuple[ComparedFigure, ...]
    n_rows: int = Field(description="Comparisons of both days that match the filters.")
    n_shared_prompts: int = Field(description="Prompts that people judged on both days.")
    n_not_counted: int = Field(description="Newest votes that the figures do not hold yet.")

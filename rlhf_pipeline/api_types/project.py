"""Guidelines, rules, progress, data quality, metrics and the audit chain of a project."""

from datetime import date, datetime
from typing import Annotated, Literal

from pydantic import ConfigDict, Field

from rlhf_pipeline.api_types.base import Answer, Request
from rlhf_pipeline.api_types.votes import Share
from rlhf_pipeline.records import AnnotationRules, AnnotatorKind, Text


class NewGuideline(Request):
    text: Annotated[Text, Field(min_length=1, max_length=100_000)]


class NewRules(AnnotationRules):
    """The rules of annotation to store. Fields left out get their default."""

    seed: int | None = Field(  # type: ignore[assignment]
        default=None, ge=0, description="Null or left out: unchanged."
    )
    agreement_votes: int | None = Field(  # type: ignore[assignment]
        default=None, ge=2, le=9, description="Null or left out: unchanged."
    )


class RulesRead(AnnotationRules):
    """The rules of annotation as returned."""

    model_config = ConfigDict(frozen=True, extra="ignore")

    seed: int | None = Field(  # type: ignore[assignment]
        description="Null for annotators, because it reveals hidden cards."
    )


class RulesOut(Answer):
    version: int
    rules: RulesRead


class Work(Answer):
    n_comparisons: int
    n_wanted: int
    n_done: int
    n_leased: int
    n_open: int


class DayCount(Answer):
    day: date
    n: int


class AnnotatorProgress(Answer):
    annotator_id: str
    name: str | None = Field(description="Only for users with `users.read`.")
    kind: AnnotatorKind
    n: int
    n_today: int
    median_seconds: float | None
    last_at: datetime | None


class ProgressOut(Answer):
    """Votes cast, without skips and votes by machines. A vote and its replacement count once. Days
    are those of `voted_at`; imported votes without a time belong to no day."""

    work: Work
    votes: int
    machine_votes: int
    votes_by_day: tuple[DayCount, ...]
    annotators: tuple[AnnotatorProgress, ...]


class MarkedShare(Share):
    """The number of marked votes among the n votes for which the mark is known."""

    marked: int


class AnnotatorQuality(Answer):
    """Quality of the counting votes of one annotator. A share of zero votes has no interval."""

    annotator_id: str
    name: str | None = Field(description="Only for users with `users.read`.")
    n_votes: int
    too_fast: MarkedShare | None = Field(
        description="Share of votes cast faster than anyone can read both completions, among votes "
        "with a known duration."
    )
    same_as_before: MarkedShare | None = Field(
        description="Share of votes that repeat the previous vote's displayed side; about 0.5 for "
        "attentive annotators. Null if no displayed side is known, as for imported votes."
    )
    duplicate: MarkedShare | None = Field(
        description="Share of votes on two completions that the same annotator had already judged "
        "in another comparison, not counting repeats."
    )


class QualityOut(Answer):
    """Data quality by annotator, by default the most doubtful first: ordered by the highest lower
    bound of the shares, `same_as_before` above one half.
    """

    n_annotators: int = Field(description="All that match `q`, on this page and on others.")
    annotators: tuple[AnnotatorQuality, ...]
    next: str | None = Field(None, description="Cursor of the next page; null on the last one.")


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


class Verification(Answer):
    holds: bool
    n_links: int = Field(description="Number of links verified; 0 if the chain is broken.")
    broken_at: str | None = Field(description="The first row that was changed, and how.")
    n_anchors: int = Field(description="Number of daily anchors compared with the chain.")


RegistryStatus = Literal["ok", "absent", "unreachable"]
DaemonStatus = Literal["ok", "absent", "silent", "unknown"]


class Health(Answer):
    status: Literal["ok"]


class Readiness(Answer):
    status: Literal["ok"]
    store: Literal["ok"]
    registry: RegistryStatus = Field(
        description="Whether MLflow responds; absent until its database is made."
    )
    daemon: DaemonStatus = Field(
        description="Whether the daemon or `rlhf loop` evaluates sensors; absent if neither has "
        "run yet or it was ended on purpose, silent if it stopped."
    )

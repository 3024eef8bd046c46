"""Leased cards, votes as sent and as recorded, and an annotator's own statistics."""

from datetime import datetime
from typing import Annotated, Literal, Self

from pydantic import AwareDatetime, Field, SkipValidation, model_validator

from rlhf_pipeline.core.api_types.base import (
    MOST_IN_BATCH,
    Answer,
    Id,
    LongText,
    ProblemDocument,
    RequestBody,
)
from rlhf_pipeline.core.conversations import Turn
from rlhf_pipeline.core.records import (
    LARGEST,
    Choice,
    Highlight,
    Text,
    VisibleRules,
)

Side = Literal["a", "b", "tie"]
Flag = Literal["pii", "identity", "broken", "undone"]


Key = Annotated[Text, Field(min_length=1, max_length=128, pattern=r"^[ -~]+$")]


class CardOut(Answer):
    """A comparison to judge: `left` is a, `right` is b; or a single completion to rate, which is
    `left`. It does not reveal why a comparison was dealt or which model wrote a completion."""

    card_id: str
    kind: Literal["comparison", "rating"] = "comparison"
    prompt: str
    turns: tuple[Turn, ...] = Field(
        description="Messages of a prompt that is a conversation; none of a single text."
    )
    left: str
    right: str = Field(description="Empty on a card to rate.")
    leased_until: datetime


class Lease(Answer):
    cards: tuple[CardOut, ...]
    rules: VisibleRules
    guideline_version: int | None
    remaining: int = Field(
        description="Number of judgements open for you, rounded up to tens; 200 means over 190."
    )
    reason_empty: Literal["nothing_open", "cap_reached"] | None


class Extended(Answer):
    n: int = Field(description="Number of cards whose lease was extended.")


class VoteFields(RequestBody):
    """A judgement of a card (`card_id`: a is the left side, b the right side) or, for users
    with `comparisons.read`, of a comparison (`comparison_id`: a and b as in the comparison)."""

    card_id: Id | None = None
    comparison_id: Id | None = None
    choice: Choice
    strength: int | None = Field(
        default=None,
        ge=1,
        le=4,
        strict=True,
        description="1 (slight) to 4 (strong); only for choice a or b.",
    )
    reason: LongText | None = None
    stated_confidence: float | None = Field(default=None, ge=0, le=1)
    duration_s: float | None = Field(default=None, ge=0, le=86_400, allow_inf_nan=False)
    voted_at: AwareDatetime | None = Field(
        default=None,
        description="Time of the vote by your clock; default now. Times in the future count as "
        "now.",
    )
    dimensions: dict[Annotated[Text, Field(max_length=40)], Side] = Field(default={}, max_length=8)
    highlights: list[Highlight] = Field(default=[], max_length=200)
    flags: list[Flag] = Field(default=[], max_length=4)
    supersedes: Id | None = Field(
        default=None,
        description="Id of your vote that this one replaces, within the project's `undo_seconds`.",
    )
    guideline_version: int | None = Field(
        default=None,
        ge=1,
        le=LARGEST,
        description="Version of the guidelines that were shown, as in the lease; default the "
        "newest.",
    )


class VoteInBatch(VoteFields):
    idempotency_key: Key


class Batch(RequestBody):
    # Each vote is validated by itself, so that an invalid one does not fail the others.
    votes: list[SkipValidation[VoteInBatch]] = Field(min_length=1, max_length=MOST_IN_BATCH)


class VoteReceipt(Answer):
    vote_id: str
    card_id: str | None
    comparison_id: str | None = Field(description="Only if the vote named the comparison.")
    choice: Choice
    strength: int | None
    voted_at: datetime
    received_at: datetime
    supersedes: str | None


class RatingFields(RequestBody):
    """A rating of a card to rate; without `value` a skip; with `supersedes` an undo."""

    card_id: Id
    value: int | None = Field(
        default=None, ge=1, le=5, strict=True, description="1 (poor) to 5 (excellent)."
    )
    text: LongText | None = Field(default=None, description="The reason.")
    flags: list[Literal["pii", "identity", "broken"]] = Field(default=[], max_length=3)
    rated_at: AwareDatetime | None = Field(
        default=None, description="By your clock; default now. Times in the future count as now."
    )
    supersedes: Key | None = Field(
        default=None,
        description="Idempotency key of your rating or skip to undo, within `undo_seconds`.",
    )

    @model_validator(mode="after")
    def _check_undo(self) -> Self:
        if self.supersedes is not None and (self.value, self.text, self.flags) != (None, None, []):
            raise ValueError("an undo rates nothing: send the new rating after it")
        return self


class RatingReceipt(Answer):
    card_id: str
    value: int | None
    rated_at: datetime


class BatchResult(Answer):
    """The receipt of one vote of a batch, or the problem with it."""

    status: int
    vote: VoteReceipt | None = None
    problem: ProblemDocument | None = None


class BatchResults(Answer):
    results: tuple[BatchResult, ...] = Field(description="In the order of the votes.")


class Share(Answer):
    """A count out of n, with the 95 % interval of the share."""

    n: int
    low: float | None
    high: float | None


class Repeats(Share):
    agree: int


class GoldShare(Share):
    right: int


class Confidence(Answer):
    stated: float
    n: int
    right: int


class Statistics(Answer):
    """Your own statistics. Hidden cards are counted as their votes stood at 00:00 UTC, because a
    later vote would reveal its card.
    """

    votes_today: int
    votes_total: int
    median_seconds: float | None
    days_in_a_row: int
    repeats: Repeats
    gold: GoldShare
    confidence: tuple[Confidence, ...]

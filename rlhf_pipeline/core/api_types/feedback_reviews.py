"""Reviews of feedback: what a curator decides about many entries at once, and what it changed."""

from typing import Annotated, Self

from pydantic import AfterValidator, Field, model_validator

from rlhf_pipeline.core.api_types.base import Answer, RequestBody
from rlhf_pipeline.core.api_types.filters import FeedbackSelection
from rlhf_pipeline.core.records import (
    FeedbackStatus,
    Number,
    Text,
)

MOST_REVIEWED = 10_000  # entries at once: 1 s in one transaction


def _read_tag(text: str) -> str:
    """In lower case, so that no tag is there twice. A comma divides tags in a form."""
    tag = text.strip().lower()
    if not tag or not tag.isprintable() or set(tag) & set('",\\'):
        raise ValueError('must be a word or words in one line, without comma, " and \\')
    return tag


Tag = Annotated[Text, Field(max_length=100), AfterValidator(_read_tag)]
Tags = Annotated[tuple[Tag, ...], Field(max_length=20)]


class FeedbackReview(RequestBody):
    """What to change of feedback, named by ids or by a filter; what is left out stays."""

    feedback_ids: list[Number] = Field(default=[], max_length=MOST_REVIEWED)
    filter: FeedbackSelection | None = Field(
        default=None, description="Instead of feedback_ids: all that `GET feedback` lists with it."
    )
    n_expected: int | None = Field(
        default=None,
        ge=1,
        le=MOST_REVIEWED,
        description="Entries that the filter is known to match. Another number is refused.",
    )
    status: FeedbackStatus | None = None
    tags: Tags | None = Field(default=None, description="Replace the curators' tags.")
    add_tags: Tags = Field(default=(), description="Added to the curators' tags.")
    notes: Text | None = Field(
        default=None, max_length=20_000, description="Replace the notes; empty removes them."
    )

    @model_validator(mode="after")
    def _check_fields(self) -> Self:
        if bool(self.feedback_ids) == (self.filter is not None):
            raise ValueError("name the entries either by feedback_ids or by filter")
        if (self.filter is None) != (self.n_expected is None):
            raise ValueError("filter needs n_expected, and n_expected a filter")
        if (self.status, self.tags, self.notes) == (None, None, None) and not self.add_tags:
            raise ValueError("say what to change: a status, tags or notes")
        return self


class ReviewUndo(RequestBody):
    review_id: Number


class ReviewedFeedback(Answer):
    """What a review, or its undo, did."""

    review_id: int | None = Field(description="For `feedback:undo`; null where nothing changed.")
    n_matched: int
    n_changed: int
    left: tuple[int, ...] = Field(
        default=(), description="Entries that an undo left: they were changed since the review."
    )

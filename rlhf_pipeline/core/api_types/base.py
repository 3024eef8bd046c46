"""Base classes of requests and answers, pages of lists, problem documents and shared bounds."""

from typing import Annotated, Generic, TypeVar

from pydantic import AfterValidator, BaseModel, ConfigDict, Field

from rlhf_pipeline.core.records import Text

MOST_IN_BATCH = 50
MOST_AT_ONCE = 20  # cards in a lease, as many as a project may let prefetch
MOST_LISTED = 200

T = TypeVar("T")

LongText = Annotated[Text, Field(max_length=20_000)]


def refuse_blank(text: str) -> str:
    """For texts that people read; raises ValueError."""
    if not text.strip():
        raise ValueError("must not be blank")
    return text


Name = Annotated[Text, AfterValidator(refuse_blank), Field(min_length=1, max_length=200)]
Id = Annotated[Text, Field(min_length=1, max_length=200)]


class RequestBody(BaseModel):
    """A request body. Unknown fields are refused, so that a misspelt one is not ignored."""

    model_config = ConfigDict(extra="forbid")


class Answer(BaseModel):
    """What a route returns: immutable. Clients ignore fields that a newer server adds."""

    model_config = ConfigDict(frozen=True, extra="ignore")


class ProblemDetail(Answer):
    path: str = Field(description="Path of the invalid field, such as `body.votes.0.choice`.")
    message: str


class ProblemDocument(Answer):
    """An error as defined by RFC 9457: what went wrong and how to fix it."""

    type: str
    title: str
    status: int
    detail: str
    errors: tuple[ProblemDetail, ...] = ()


class Page(Answer, Generic[T]):
    """One page of a list, newest first. Pass `next` as `cursor` to get the following page."""

    items: tuple[T, ...]
    next: str | None = Field(description="Cursor of the next page; null on the last page.")

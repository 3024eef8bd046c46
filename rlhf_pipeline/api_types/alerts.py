"""New silences, and the results of test messages."""

from typing import Annotated

from pydantic import AwareDatetime, Field

from rlhf_pipeline.api_types.base import Answer, Name, Request
from rlhf_pipeline.records import Text


class NewSilence(Request):
    """Keeps alerts from being sent until `ends_at`; they are recorded."""

    rule: Name | None = Field(default=None, description="Only alerts of this rule.")
    subject: Name | None = Field(default=None, description="Only alerts of this subject.")
    reason: Annotated[Text, Field(min_length=1, max_length=1000)]
    ends_at: AwareDatetime


class TestMessageOut(Answer):
    """Result of a test message."""

    message_id: str
    is_delivered: bool
    detail: str = Field(description="What the receiver accepted, or why it did not.")

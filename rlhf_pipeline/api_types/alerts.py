"""Rules of alerts, new silences and test messages."""

from collections.abc import Mapping
from typing import Annotated, Literal

from pydantic import AwareDatetime, Field

from rlhf_pipeline.api_types.base import Answer, Name, Request
from rlhf_pipeline.monitoring import MetricName, Severity
from rlhf_pipeline.records import Text


class NewSilence(Request):
    """Keeps alerts from being sent until `ends_at`; they are recorded."""

    rule: Name | None = Field(default=None, description="Only alerts of this rule.")
    subject: Name | None = Field(default=None, description="Only alerts of this subject.")
    reason: Annotated[Text, Field(min_length=1, max_length=1000)]
    ends_at: AwareDatetime


class AlertRuleOut(Answer):
    """A rule as it is now: the default, changed by rlhf.yaml."""

    name: str
    reads: MetricName
    labels: Mapping[str, str]
    comparison: Literal["above", "below"]
    threshold: float
    resolve_at: float | None
    for_minutes: float
    within_days: int
    severity: Severity
    title: str
    loop_action: str
    next_step: str
    is_on: bool


class TestMessageOut(Answer):
    """Result of a test message."""

    message_id: str
    is_delivered: bool
    detail: str = Field(description="What the receiver accepted, or why it did not.")

"""Alerts, their rules, silences and messages."""

from collections.abc import Mapping
from datetime import datetime
from typing import Annotated, Literal

from pydantic import AwareDatetime, ConfigDict, Field

from rlhf_pipeline.api_types.base import Answer, Name, Request
from rlhf_pipeline.monitoring import Alert, AlertMessage, MetricName, Severity, Silence
from rlhf_pipeline.records import Text


class AlertOut(Alert):
    """One incident, as returned."""

    model_config = ConfigDict(frozen=True, extra="ignore")


class SilenceOut(Silence):
    """A silence, as returned."""

    model_config = ConfigDict(frozen=True, extra="ignore")


class NewSilence(Request):
    """Keeps alerts from being sent until `ends_at`; they are recorded."""

    rule: Name | None = Field(default=None, description="Only alerts of this rule.")
    subject: Name | None = Field(default=None, description="Only alerts of this subject.")
    reason: Annotated[Text, Field(min_length=1, max_length=1000)]
    ends_at: AwareDatetime


class AlertRuleOut(Answer):
    """A rule as it is now, and who changed it by command or API."""

    name: str
    reads: MetricName
    labels: Mapping[str, str]
    comparison: Literal["above", "below"]
    threshold: float
    resolve_at: float | None
    for_minutes: float
    for_days: int
    within_days: int
    severity: Severity
    title: str
    is_on: bool
    changed_by: str | None = Field(
        description="Who set it by command or API; null if rlhf.yaml or the default does."
    )
    changed_at: datetime | None
    ignored_change: str | None = Field(
        description="Why that change is not used, and how to fix it; null if it is used."
    )


class AlertMessageOut(AlertMessage):
    """A message that tells a target about an alert, as returned."""

    model_config = ConfigDict(frozen=True, extra="ignore")


class TestMessageOut(Answer):
    """Result of a test message."""

    message_id: str
    is_delivered: bool
    detail: str = Field(description="What the receiver accepted, or why it did not.")

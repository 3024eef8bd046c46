"""Records of monitoring: metric points, alerts, and the messages sent about alerts."""

from collections.abc import Mapping
from datetime import date, datetime
from typing import Annotated, Any, Literal, Self

from pydantic import AwareDatetime, Field

from rlhf_pipeline.core.records import Interval, Record, Text

MetricName = Annotated[str, Field(pattern=r"^[a-z][a-z0-9_]*(\.[a-z][a-z0-9_]*)*$", max_length=80)]
Severity = Literal["info", "warning", "critical"]
AlertState = Literal["pending", "open", "acknowledged", "resolved"]
MessageKind = Literal["opened", "reminder", "escalated", "resolved", "test"]
MessageState = Literal["pending", "delivered", "dead"]


class MetricPoint(Record):
    """One figure of a day, such as the calibration error of model 7 on 2026-01-03.

    `n` measurements with the sum `total` and the sum of squares `total_squares`, where they are
    known; sums of several points add up. `value` is the figure itself, with its 95 % interval where
    there is one; None says that nothing was measured.
    """

    day: date
    name: MetricName
    labels: Mapping[str, str] = Field(default_factory=dict)
    n: int = Field(default=0, ge=0)
    total: float | None = None
    total_squares: float | None = None
    value: float | None = None
    low: float | None = None
    high: float | None = None
    measured_at: AwareDatetime

    @classmethod
    def of_interval(
        cls,
        day: date,
        name: str,
        interval: Interval,
        measured_at: datetime,
        labels: Mapping[str, str] | None = None,
    ) -> Self:
        """The point of an estimate with its interval."""
        return cls(
            day=day,
            name=name,
            labels=labels or {},
            n=interval.n,
            value=interval.value,
            low=interval.low,
            high=interval.high,
            measured_at=measured_at,
        )


class Alert(Record):
    """One incident of a rule: open until somebody acknowledges it or its condition ends.

    `subject` is what the rule speaks of, such as a model or a job; a rule has at most one alert per
    subject whose condition has not ended. While a rule waits for its condition to last, the alert
    is pending. `level` counts the groups of targets it has been escalated to beyond the first.
    """

    alert_id: int
    rule: str
    subject: Text
    severity: Severity
    state: AlertState
    title: Text
    detail: Text = ""
    progress: Text = Field(
        default="", description="How far the loop's answer is, such as `answered, not served`."
    )
    loop_action: Text = Field(default="", description="What the loop did about it.")
    next_step: Text = Field(default="", description="What a person should do next.")
    value: float | None = None
    threshold: float | None = None
    evidence: Mapping[str, Any] = Field(default_factory=dict)
    link: str | None = Field(
        default=None, description="A path in the web app, or an address elsewhere."
    )
    opened_at: AwareDatetime
    seen_at: AwareDatetime  # when the condition was last found true, to a few minutes
    notified_at: AwareDatetime | None = None  # the last message about it
    targets: tuple[str, ...] = ()  # those that received a message about it
    level: int = Field(default=0, ge=0)
    level_at: AwareDatetime | None = None  # when that level was notified
    acknowledged_at: AwareDatetime | None = None
    acknowledged_by: str | None = None
    resolved_at: AwareDatetime | None = None
    resolved_by: str | None = None  # None: the condition ended by itself
    ended_at: AwareDatetime | None = None  # None: the condition is still true
    resolution: Text = ""  # what ended it, where that is known


class AlertMessage(Record):
    """Tells one target about an alert; waits in the outbox until it is delivered.

    `message_id` stays the same over all attempts, so that a receiver recognises a repetition.
    """

    message_id: str
    alert_id: int | None  # None: a test message
    target: str
    kind: MessageKind
    payload: Mapping[str, Any]
    state: MessageState = "pending"
    n_attempts: int = 0
    created_at: AwareDatetime
    next_attempt_at: AwareDatetime
    delivered_at: AwareDatetime | None = None
    last_error: Text | None = None

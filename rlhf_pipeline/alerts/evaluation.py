"""Compares readings with rules: a finding for each subject that a rule has a reading of."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Literal

from rlhf_pipeline.alerts.readings import Reading
from rlhf_pipeline.alerts.rules import AlertRule
from rlhf_pipeline.metric_catalogue import METRICS

# near: beyond the value at which an open alert is resolved, but not beyond the threshold.
# unknown: not measured, or too long ago; an open alert stays open and none is opened.
Status = Literal["broken", "near", "kept", "unknown"]


@dataclass(frozen=True)
class RuleFinding:
    """Result of one rule for one subject."""

    rule: AlertRule
    subject: str
    status: Status
    reading: Reading

    @property
    def title(self) -> str:
        reading = self.reading
        figures: dict[str, object] = {
            "subject": self.subject,
            "detail": reading.detail or "no detail",
        }
        if reading.value is not None:
            figures |= {"value": reading.value, "duration": _describe_seconds(reading.value)}
        text = self.rule.fill_title(figures, reading.labels)
        if self.status == "unknown" and reading.of_day is not None:
            text += f" (no figure since {reading.of_day})"
        return " ".join(make_storable(text).split())


def _describe_seconds(seconds: float) -> str:
    """In the largest unit of which there are at least two.

    >>> _describe_seconds(72_180)
    '20 hours'
    """
    for size, unit in ((86_400, "days"), (3600, "hours"), (60, "minutes")):
        if seconds >= 2 * size:
            return f"{seconds / size:.0f} {unit}"
    return f"{seconds:.0f} seconds"


def make_storable(text: str) -> str:
    """Without NUL and half characters, which an error message of a run may hold."""
    return text.replace("\0", "").encode(errors="replace").decode()


def evaluate(
    rules: Iterable[AlertRule], readings: Sequence[Reading], now: datetime
) -> list[RuleFinding]:
    """A finding for each rule that is on and each subject with a reading.

    Of several readings of one subject, the newest counts. One that is older than `within_days`
    opens no alert; an open one stays open until there is a figure again.
    """
    ordered = sorted(readings, key=lambda each: (each.day, each.measured_at))
    findings = []
    for rule in rules:
        subjects: dict[str, list[Reading]] = {}
        for reading in ordered if rule.is_on else ():
            is_read = reading.name == rule.reads and rule.labels.items() <= reading.labels.items()
            if is_read and not _is_still_counted(rule, reading, now):
                subjects.setdefault(reading.subject, []).append(reading)
        findings += [_judge(rule, of_subject, now) for of_subject in subjects.values()]
    return findings


def _is_still_counted(rule: AlertRule, reading: Reading, now: datetime) -> bool:
    """Whether the reading counts a day that is not over, for a rule that fires below: each day
    begins at 0.
    """
    is_count = reading.name in METRICS and METRICS[reading.name].is_count_of_day
    return is_count and rule.comparison == "below" and reading.day == now.date()


def _judge(rule: AlertRule, readings: Sequence[Reading], now: datetime) -> RuleFinding:
    """What the readings of one subject, oldest first, say."""
    measured = [reading for reading in readings if reading.value is not None]
    last = measured[-1] if measured else readings[-1]
    status = _compare(rule, last)
    is_old = last.day < now.date() - timedelta(days=rule.within_days)
    if status != "kept" and (is_old or readings[-1].value is None):
        status = "unknown"
    return RuleFinding(rule, last.subject, status, last)


def _compare(rule: AlertRule, reading: Reading) -> Status:
    if reading.value is None:
        return "unknown"
    bound = reading.low if rule.comparison == "above" else reading.high
    if rule.is_beyond(reading.value if bound is None else bound, rule.threshold):
        return "broken"
    # An estimate opens an alert by its bound and resolves it by itself: else each day with fewer
    # votes would end the incident and the next one open it anew.
    end = rule.threshold if rule.resolve_at is None else rule.resolve_at
    return "near" if rule.is_beyond(reading.value, end) else "kept"

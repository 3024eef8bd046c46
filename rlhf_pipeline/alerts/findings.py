"""Compares readings with rules: a finding for each subject that a rule speaks of."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import date, datetime, timedelta
from typing import Any, Literal, Self

from rlhf_pipeline.alerts.rules import AlertRule
from rlhf_pipeline.metric_catalogue import METRICS
from rlhf_pipeline.monitoring import MetricPoint

# near: beyond the value at which an open alert is resolved, but not beyond the threshold.
# unknown: not measured, or too long ago; an open alert stays open and none is opened.
Status = Literal["broken", "near", "kept", "unknown"]


@dataclass(frozen=True)
class Reading:
    """A figure that rules read: a metric point, or a fact of the store or of Dagster with its
    evidence.
    """

    name: str
    measured_at: datetime
    value: float | None
    labels: Mapping[str, str] = field(default_factory=dict)
    low: float | None = None
    high: float | None = None
    detail: str = ""
    evidence: Mapping[str, Any] = field(default_factory=dict)
    link: str | None = None
    of_day: date | None = None  # of a figure; None: a fact, which is as true now as it was then
    gone: str = ""  # why its subject does not exist any more, which ends an alert about it

    @classmethod
    def of_point(cls, point: MetricPoint) -> Self:
        measured = {"n": point.n or None, "low": point.low, "high": point.high}
        return cls(
            name=point.name,
            measured_at=point.measured_at,
            value=point.value,
            labels=point.labels,
            low=point.low,
            high=point.high,
            of_day=point.day,
            evidence={name: value for name, value in measured.items() if value is not None},
        )

    @property
    def day(self) -> date:
        return self.of_day or self.measured_at.date()

    @property
    def subject(self) -> str:
        """The values of its labels; a figure without labels is of the project."""
        return ", ".join(self.labels.values()) or "project"


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
        names = {"subject": self.subject, "detail": reading.detail or "no detail", **reading.labels}
        numbers = {"value": reading.value, "threshold": self.rule.threshold}
        duration = {} if reading.value is None else {"duration": _describe_seconds(reading.value)}
        text = self.rule.title.format_map(_Blanks(duration | names | numbers))
        if self.status == "unknown" and reading.of_day is not None:
            text += f" (no figure since {reading.of_day})"
        return " ".join(_make_storable(text).split())

    @property
    def detail(self) -> str:
        return _make_storable(self.reading.gone or self.reading.detail)


def _describe_seconds(seconds: float) -> str:
    """In the largest unit of which there are at least two.

    >>> _describe_seconds(72_180)
    '20 hours'
    """
    for size, unit in ((86_400, "days"), (3600, "hours"), (60, "minutes")):
        if seconds >= 2 * size:
            return f"{seconds / size:.0f} {unit}"
    return f"{seconds:.0f} seconds"


def _make_storable(text: str) -> str:
    """Without NUL and half characters, which an error message of a run may hold."""
    return text.replace("\0", "").encode(errors="replace").decode()


class _Blanks(dict[str, Any]):
    """Shows `?` for a label that the reading lacks."""

    def __missing__(self, name: str) -> str:
        return "?"


def evaluate(
    rules: Iterable[AlertRule], readings: Sequence[Reading], now: datetime
) -> list[RuleFinding]:
    """A finding for each rule that is on and each subject with a reading.

    Of several readings of one subject, the newest counts. One that is older than `within_days`
    opens no alert; an open one stays open until there is a figure again.
    """
    by_name: dict[str, list[Reading]] = {}
    for reading in sorted(readings, key=lambda each: (each.day, each.measured_at)):
        by_name.setdefault(reading.name, []).append(reading)
    findings = []
    for rule in rules:
        if not rule.is_on:
            continue
        subjects: dict[str, list[Reading]] = {}
        for reading in by_name.get(rule.reads, []):
            is_labelled = rule.labels.items() <= reading.labels.items()
            if is_labelled and not _is_still_counted(rule, reading, now):
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
    status = "kept" if last.gone else _compare(rule, last)
    is_old = last.day < now.date() - timedelta(days=rule.within_days)
    if status != "kept" and (is_old or readings[-1].value is None):
        status = "unknown"
    if status == "broken" and rule.for_days > 1:
        days = _find_broken_days(rule, measured)
        status = "broken" if len(days) >= rule.for_days else "near"
        evidence = {**last.evidence, "days": [day.isoformat() for day in days[-rule.for_days :]]}
        last = replace(last, evidence=evidence)
    return RuleFinding(rule, last.subject, status, last)


def _find_broken_days(rule: AlertRule, measured: Sequence[Reading]) -> list[date]:
    """The latest measured days in a row that break the rule. Days without a figure are passed over;
    more than `within_days` of them end the row.
    """
    by_day = {reading.day: _compare(rule, reading) for reading in measured}
    days: list[date] = []
    for day in sorted(by_day, reverse=True):
        n_missing = (days[-1] - day).days - 1 if days else 0
        if by_day[day] != "broken" or n_missing > rule.within_days:
            break
        days.append(day)
    return days[::-1]


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

"""Rules of alerts: each compares the readings of one metric with a threshold."""

import re
from collections.abc import Mapping
from string import Formatter
from typing import Annotated, Any, Literal, Self

from pydantic import Field, ValidationError, field_validator, model_validator

from rlhf_pipeline.errors import ConfigurationError
from rlhf_pipeline.metric_catalogue import METRICS
from rlhf_pipeline.monitoring import MetricName, Severity
from rlhf_pipeline.parameters import Parameters, suggest
from rlhf_pipeline.records import Record, Text

# Read by rules beside the metrics, and not stored: what the store and Dagster say right now.
FACTS: Mapping[str, str] = {
    "drift.unanswered": "1 while a change that the trigger confirmed is not answered",
    "gate.refused": "1 while the latest decision of the gate is a refusal",
    "model.accuracy_gap": "noise ceiling minus accuracy of the latest reward model",
    "spend.share": "share of the daily budget that is spent",
    "runs.last_failed": "1 while the last run of a job failed",
    "checks.last_failed": "while the last result of an asset check is a failure: 2 if it stops a "
    "run, 1 if it warns",
    "schedules.overdue": "1 while a schedule has started no run within an hour of its time",
    "settings.unusable": "1 while the section loop of rlhf.yaml is invalid, or names an unknown "
    "target",
}
RuleName = Annotated[str, Field(pattern=r"^[a-z][a-z0-9_]*$", max_length=60)]


class AlertRule(Record):
    """When a metric opens an alert. Of an estimate, the bound of its interval nearer to the
    threshold is compared, so that chance alone opens none; the estimate itself resolves it.
    """

    name: RuleName
    reads: MetricName
    labels: Mapping[str, str] = Field(default_factory=dict)
    comparison: Literal["above", "below"] = "above"
    threshold: float = Field(allow_inf_nan=False)
    resolve_at: float | None = Field(default=None, allow_inf_nan=False)  # None: the threshold
    for_minutes: float = 0.0
    for_days: int = 1
    within_days: int = 1
    severity: Severity = "warning"
    title: str
    page: str | None = None  # path in the web app
    is_on: bool = True

    @model_validator(mode="after")
    def _check_hysteresis(self) -> Self:
        if self.resolve_at is not None and self.is_beyond(self.resolve_at, self.threshold):
            side = "at or below" if self.comparison == "above" else "at or above"
            raise ValueError(
                f"resolve_at {self.resolve_at:g} must be {side} the threshold {self.threshold:g}"
            )
        return self

    def is_beyond(self, value: float, threshold: float) -> bool:
        return value > threshold if self.comparison == "above" else value < threshold


class RuleChange(Parameters):
    """What a project sets of a rule, or of a rule of its own with `reads` and `threshold`."""

    reads: MetricName | None = Field(
        default=None, description="Metric that is read; docs/monitoring.md lists them"
    )
    labels: dict[str, str] | None = Field(
        default=None, description="Labels that a point must have; empty = any"
    )
    comparison: Literal["above", "below"] | None = Field(
        default=None, description="Side of the threshold on which the rule fires"
    )
    threshold: float | None = Field(default=None, description="Value beyond which the rule fires")
    resolve_at: float | None = Field(
        default=None, description="Value at which an open alert is resolved; empty = the threshold"
    )
    for_minutes: float | None = Field(
        default=None, ge=0, le=100_000, description="Minutes the condition must last"
    )
    for_days: int | None = Field(
        default=None, ge=1, le=90, description="Measured days in a row that must violate the rule"
    )
    within_days: int | None = Field(
        default=None, ge=0, le=3650, description="Age in days beyond which a figure opens no alert"
    )
    severity: Severity | None = Field(default=None, description="info, warning or critical")
    title: Text | None = Field(
        default=None,
        min_length=1,
        max_length=300,
        description="Sentence of the alert; {value}, {threshold}, {subject}, {detail}, {duration} "
        "(a value in seconds, such as 20 hours) and labels are filled in",
    )
    is_on: bool | None = Field(default=None, description="Whether the rule opens alerts")

    @field_validator("title")
    @classmethod
    def _check_title(cls, title: str | None) -> str | None:
        try:
            parts = [part for part in Formatter().parse(title or "") if part[1] is not None]
        except ValueError as cause:
            raise ValueError(f"{cause}; write {{{{ for a brace") from None
        names = [name or "" for _, name, _, _ in parts]
        if wrong := [name for name in names if not name.isidentifier()]:
            raise ValueError(f"{{{wrong[0]}}} cannot be filled in; write a plain name")
        for form in (form or "" for _, _, form, _ in parts):
            if "{" in form or re.search(r"\d{3}", form):
                raise ValueError(f"The format {form!r} may be too wide; write at most two digits")
        try:
            (title or "").format_map(dict.fromkeys(names, "x") | {"value": 1.0, "threshold": 1.0})
        except ValueError as cause:
            raise ValueError(f"{cause}; only value and threshold are numbers") from None
        return title


class AlertParams(Parameters):
    """Rules of alerts, and who receives messages about them in which order."""

    levels: list[list[str]] = Field(
        default=[],
        description="Groups of targets in order of escalation, such as [[log, team], [boss]]; "
        "empty = all targets at once",
    )
    escalate_after_minutes: float = Field(
        default=60,
        ge=0,
        le=100_000,
        description="Minutes after which an unacknowledged alert goes to the next group; 0 = never",
    )
    remind_after_hours: float = Field(
        default=24,
        ge=0,
        le=10_000,
        description="Hours between messages about an alert that nobody acknowledges; 0 = never",
    )
    rules: dict[RuleName, RuleChange] = Field(
        default={}, description="Changes of rules by name, and further rules over any metric"
    )

    @field_validator("rules")
    @classmethod
    def _check_rules(cls, changes: dict[str, RuleChange]) -> dict[str, RuleChange]:
        try:
            merge_rules(changes)
        except ConfigurationError as cause:
            raise ValueError(str(cause)) from None
        return changes


def _rule(name: str, reads: str, threshold: float, title: str, **more: Any) -> AlertRule:
    return AlertRule(name=name, reads=reads, threshold=threshold, title=title, **more)


RULES: Mapping[str, AlertRule] = {
    rule.name: rule
    for rule in (
        _rule(
            "drift",
            "drift.unanswered",
            0,
            "Preferences drifted: {detail}",
            severity="critical",
            within_days=30,
            page="/calibration",
        ),
        _rule(
            "candidate_refused",
            "gate.refused",
            0,
            "The gate refused {candidate}: {detail}",
            within_days=7,
        ),
        _rule(
            "calibration_error",
            "model.ece",
            0.08,
            "The calibration error of {reward_model} is {value:.3f} (limit {threshold:g})",
            within_days=7,
            page="/calibration",
        ),
        _rule(
            "accuracy_gap",
            "model.accuracy_gap",
            0.08,
            "The accuracy of {reward_model} is {value:.3f} below the noise ceiling (limit "
            "{threshold:g})",
            within_days=7,
            page="/calibration",
        ),
        _rule(
            "agreement",
            "agreement.rate",
            0.6,
            "Annotators agree on {value:.0%} of shared comparisons (minimum {threshold:.0%})",
            comparison="below",
            within_days=2,
            page="/quality",
        ),
        _rule(
            "queue_age",
            "queue.oldest_hours",
            72,
            "The oldest comparison has waited {value:.0f} hours for a vote (limit {threshold:g})",
            within_days=0,
            page="/progress",
        ),
        _rule(
            "no_votes",
            "votes.idle_hours",
            24,
            "Nobody has voted for {value:.0f} hours although comparisons are waiting",
            within_days=0,
            page="/progress",
        ),
        _rule(
            "spend",
            "spend.share",
            0.8,
            "{value:.0%} of the daily budget is spent (limit {threshold:.0%})",
            within_days=0,
        ),
        _rule(
            "run_failed",
            "runs.last_failed",
            0,
            "The last run of {job} failed: {detail}",
            for_minutes=5,  # a killed run is tried again at once
            within_days=30,
        ),
        _rule(
            "check_failed",
            "checks.last_failed",
            1,
            "The check {check} failed: {detail}",
            within_days=30,
        ),
        _rule(
            "schedule_missed",
            "schedules.overdue",
            0,
            "The schedule {schedule} did not start its run: {detail}",
            within_days=7,
        ),
        _rule(
            "sensor_lag",
            "sensors.lag_seconds",
            900,
            "The sensor {sensor} has not ticked for {duration}",
            for_minutes=5,
            within_days=0,
        ),
        _rule(
            "stale_asset",
            "freshness.hours",
            50,
            "{asset} was last materialised {value:.0f} hours ago (limit {threshold:g})",
            for_minutes=60,  # after a pause the schedules catch up first
            within_days=0,
        ),
        _rule(
            "settings_unusable",
            "settings.unusable",
            0,
            "Invalid settings: {detail}",
            severity="critical",
            within_days=0,
        ),
        _rule(
            "daemon_silent",
            "daemon.silent_seconds",
            120,
            "No sensor has ticked for {duration}: the daemon is not running",
            for_minutes=3,  # a daemon that was just started has not ticked yet
            severity="critical",
            within_days=30,
        ),
    )
}


def merge_rules(*layers: Mapping[str, RuleChange]) -> dict[str, AlertRule]:
    """The default rules with each layer's changes on top. Raises ConfigurationError naming the
    rule.
    """
    rules = dict(RULES)
    for layer in layers:
        for name, change in layer.items():
            rules[name] = _change_rule(name, rules.get(name), change)
    return rules


def _change_rule(name: str, rule: AlertRule | None, change: RuleChange) -> AlertRule:
    given = change.model_dump(exclude_none=True)
    if (reads := given.get("reads")) and reads not in METRICS.keys() | FACTS.keys():
        raise ConfigurationError(
            f"The rule {name!r} reads {reads!r}, which is not measured. "
            f"{suggest(reads, [*METRICS, *FACTS])}"
        )
    if rule is None and not {"reads", "threshold"} <= set(given):
        raise ConfigurationError(
            f"There is no rule {name!r}. {suggest(name, RULES)} A rule of your own needs reads and "
            "threshold."
        )
    if rule is None:
        side = given.get("comparison", "above")
        own = {"title": f"{given['reads']} of {{subject}} is {{value:g}}, {side} {{threshold:g}}"}
        values = {"name": name, **own, **given}
    else:
        values = rule.model_dump() | given
        changed, end = rule.model_copy(update=given), rule.resolve_at
        fits = end is None or not changed.is_beyond(end, changed.threshold)
        if "resolve_at" not in given and not fits:
            values["resolve_at"] = None
    try:
        return AlertRule.model_validate(values)
    except ValidationError as cause:
        problems = "; ".join(
            f"{'.'.join(map(str, error['loc']))} {error['msg'].removeprefix('Value error, ')}"
            for error in cause.errors()
        ).strip()
        raise ConfigurationError(f"The rule {name!r} cannot be used: {problems}.") from None

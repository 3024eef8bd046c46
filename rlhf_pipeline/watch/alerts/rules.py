"""Rules of alerts: each compares the readings of one metric with a threshold."""

from collections.abc import Mapping
from datetime import UTC, datetime, timedelta
from typing import Annotated, Any, Literal, Self

from pydantic import ConfigDict, Field, ValidationError, field_validator, model_validator

from rlhf_pipeline.core.errors import ConfigurationError
from rlhf_pipeline.core.metric_catalogue import METRICS
from rlhf_pipeline.core.monitoring import MetricName, Severity
from rlhf_pipeline.core.parameters import Parameters, suggest
from rlhf_pipeline.core.records import Text
from rlhf_pipeline.watch.alerts.readings import Reading

# Read by rules beside the metrics, and not stored: what the store and Dagster say right now.
STATES: Mapping[str, str] = {
    "drift.unanswered": "1 while a change that the trigger confirmed is not answered, or answered "
    "but not served",
    "gate.refused": "1 while the latest decision of the gate is a refusal",
    "served.differs": "1 while the latest check finds that what serves is not the judged version",
    "spend.share": "share of the daily budget that is spent",
    "runs.last_failed": "1 while the last run of a job failed",
    "checks.last_failed": "while the last result of an asset check is a failure: 2 if it stops a "
    "run, 1 if it warns",
    "settings.unusable": "1 while the section loop of rlhf.yaml is invalid, or names an unknown "
    "target",
}
# Labels of those readings of states that have any
STATE_LABELS = {
    "drift.unanswered": ("decision",),
    "gate.refused": ("candidate",),
    "runs.last_failed": ("job",),
    "checks.last_failed": ("check",),
}
RuleName = Annotated[str, Field(pattern=r"^[a-z][a-z0-9_]*$", max_length=60)]
# Minutes double from 1 to 6 hours: with the first one, 12 attempts in about 20 hours.
RETRY_SECONDS = [60.0 * min(2**n, 360) for n in range(11)]


class AlertRule(Parameters):
    """When a metric opens an alert. Of an estimate, the bound of its interval nearer to the
    threshold is compared, so that chance alone opens none; the estimate itself resolves it.
    """

    model_config = ConfigDict(frozen=True)

    name: RuleName
    reads: MetricName = Field(
        description="Metric or state that is read; the reference of the docs lists them"
    )
    labels: Mapping[str, str] = Field(
        default={}, description="Labels that a point must have; empty = any"
    )
    comparison: Literal["above", "below"] = Field(
        default="above", description="Side of the threshold on which the rule fires"
    )
    threshold: float = Field(description="Value beyond which the rule fires")
    resolve_at: float | None = Field(
        default=None, description="Value at which an open alert is resolved; empty = the threshold"
    )
    for_minutes: float = Field(
        default=0, ge=0, le=100_000, description="Minutes the condition must last"
    )
    within_days: int = Field(
        default=1, ge=0, le=3650, description="Age in days beyond which a figure opens no alert"
    )
    severity: Severity = Field(default="warning", description="info, warning or critical")
    title: Text = Field(
        default="{reads} of {subject} is {value:g}, {comparison} {threshold:g}",
        min_length=1,
        max_length=300,
        description="Sentence of the alert; {value}, {threshold}, {subject}, {detail}, {duration} "
        "(a value in seconds, as 20:03:00) and labels are filled in",
    )
    loop_action: Text = Field(
        default="Nothing by itself; a person decides.", description="What the loop does about it"
    )
    next_step: Text = Field(
        default="Find out why, then acknowledge the alert.",
        description="What a person should do next",
    )
    page: str | None = Field(default=None, description="Path in the web app that shows more")
    is_on: bool = Field(default=True, description="Whether the rule opens alerts")

    @model_validator(mode="after")
    def _check(self) -> Self:
        if self.resolve_at is not None and self.is_beyond(self.resolve_at, self.threshold):
            side = "at or below" if self.comparison == "above" else "at or above"
            raise ValueError(
                f"resolve_at {self.resolve_at:g} must be {side} the threshold {self.threshold:g}"
            )
        if self.reads not in METRICS.keys() | STATES.keys():
            suggestion = suggest(self.reads, [*METRICS, *STATES])
            raise ValueError(f"reads {self.reads!r}, which is not measured. {suggestion}")
        now = datetime.now(UTC)
        try:
            self.fill_title(Reading(self.reads, now, 1.0))
        except KeyError as cause:
            suggestion = suggest(
                str(cause.args[0]), self._build_blanks(Reading(self.reads, now, 1.0))
            )
            raise ValueError(
                f"the title has an unknown placeholder {cause}. {suggestion}"
            ) from None
        except (ValueError, AttributeError, IndexError, TypeError) as cause:
            raise ValueError(f"the title cannot be filled in: {cause}") from None
        return self

    def is_beyond(self, value: float, threshold: float) -> bool:
        return value > threshold if self.comparison == "above" else value < threshold

    def fill_title(self, reading: Reading) -> str:
        """The title with its blanks filled in; `?` stands for a label that the reading lacks."""
        return self.title.format_map(self._build_blanks(reading))

    def _build_blanks(self, reading: Reading) -> dict[str, Any]:
        metric = METRICS.get(self.reads)
        labels = metric.labels if metric else STATE_LABELS.get(self.reads, ())
        return {
            **dict.fromkeys(labels, "?"),
            **reading.labels,
            "reads": self.reads,
            "comparison": self.comparison,
            "threshold": self.threshold,
            "subject": reading.subject,
            "detail": reading.detail or "no detail",
            "value": reading.value,
            "duration": timedelta(seconds=round(reading.value or 0)),
        }


class AlertParams(Parameters):
    """Rules of alerts, who receives messages about them in which order, and when again."""

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
    retry_seconds: list[Annotated[float, Field(gt=0, le=86_400)]] = Field(
        default=RETRY_SECONDS,
        max_length=100,
        description="Seconds from each failed attempt of a message to the next one; after the last "
        "the message is given up",
    )
    rules: dict[RuleName, dict[str, Any]] = Field(
        default={}, description="Changes of rules by name, and further rules over any metric"
    )

    @field_validator("rules")
    @classmethod
    def _check_rules(cls, changes: dict[str, dict[str, Any]]) -> dict[str, dict[str, Any]]:
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
            loop_action="The previous policy goes on serving.",
            next_step="Read the reasons. Promote the candidate with `rlhf models promote`, or "
            "train another one.",
        ),
        _rule(
            "served_differs",
            "served.differs",
            0,
            "What serves is not the judged version {detail}",
            severity="critical",
            page="/releases",
            next_step="Load the right files or adapter into the server, or roll back.",
        ),
        _rule(
            "calibration_error",
            "model.ece",
            0.08,
            "The calibration error of {reward_model} is {value:.3f} (limit {threshold:g})",
            within_days=7,
            page="/calibration",
            loop_action="It fits the calibrator again once the trigger confirms the change.",
            next_step="Look at the reliability diagram on the page Calibration.",
        ),
        _rule(
            "accuracy_gap",
            "model.accuracy_gap",
            0.08,
            "The accuracy of {reward_model} is {value:.3f} below the noise ceiling (limit "
            "{threshold:g})",
            within_days=7,
            page="/calibration",
            loop_action="It retrains once the trigger confirms a change.",
            next_step="Look at the accuracy of each group; order a training if the gap lasts.",
        ),
        _rule(
            "agreement",
            "agreement.rate",
            0.6,
            "Annotators agree on {value:.0%} of shared comparisons (minimum {threshold:.0%})",
            comparison="below",
            within_days=2,
            page="/quality",
            next_step="Look at the quality of annotators, and make the guidelines clearer.",
        ),
        _rule(
            "queue_age",
            "queue.oldest_hours",
            72,
            "The oldest comparison has waited {value:.0f} hours for a vote (limit {threshold:g})",
            within_days=0,
            page="/progress",
            next_step="Ask annotators to vote, or withdraw comparisons.",
        ),
        _rule(
            "no_votes",
            "votes.idle_hours",
            24,
            "Nobody has voted for {value:.0f} hours although comparisons are waiting",
            within_days=0,
            page="/progress",
            next_step="Ask annotators to vote, and check that they can sign in.",
        ),
        _rule(
            "spend",
            "spend.share",
            0.8,
            "{value:.0%} of the daily budget is spent (limit {threshold:.0%})",
            within_days=0,
            loop_action="It generates until the budget is spent, then waits for midnight (UTC).",
            next_step="Raise budget_per_day, or generate less.",
        ),
        _rule(
            "run_failed",
            "runs.last_failed",
            0,
            "The last run of {job} failed: {detail}",
            for_minutes=5,  # a killed run is tried again at once
            within_days=30,
            loop_action="It repeats killed runs; other failures wait for a person.",
            next_step="Read the run's error in Dagster, repair its cause, and run it again.",
        ),
        _rule(
            "check_failed",
            "checks.last_failed",
            1,
            "The check {check} failed: {detail}",
            within_days=30,
            loop_action="It stopped the run, so later stages keep their previous files.",
            next_step="Read the check's result in Dagster, and repair the data.",
        ),
        _rule(
            "sensor_lag",
            "sensors.lag_seconds",
            900,
            "The sensor {sensor} has not ticked for {duration}",
            for_minutes=5,
            within_days=0,
            next_step="Read the last tick of the sensor in Dagster.",
        ),
        _rule(
            "stale_asset",
            "freshness.hours",
            30,  # each is made once a day
            "{asset} was last materialised {value:.0f} hours ago (limit {threshold:g})",
            for_minutes=60,  # after a pause the schedules catch up first
            within_days=0,
            next_step="Look on the page Runs for the run that should have made it.",
        ),
        _rule(
            "settings_unusable",
            "settings.unusable",
            0,
            "Invalid settings: {detail}",
            severity="critical",
            within_days=0,
            loop_action="It starts no run while a section of loop is invalid.",
            next_step="Correct rlhf.yaml.",
        ),
        _rule(
            "daemon_silent",
            "daemon.silent_seconds",
            120,
            "No sensor has ticked for {duration}: the daemon is not running",
            for_minutes=3,  # a daemon that was just started has not ticked yet
            severity="critical",
            within_days=30,
            loop_action="Nothing runs, but people can vote.",
            next_step="Start `rlhf dev` or `rlhf loop`; its log says why it ended.",
        ),
    )
}


def merge_rules(changes: Mapping[str, Mapping[str, Any]]) -> dict[str, AlertRule]:
    """The default rules with the changes on top. Raises ConfigurationError naming the rule."""
    rules = dict(RULES)
    for name, change in changes.items():
        if name not in RULES and not {"reads", "threshold"} <= change.keys():
            raise ConfigurationError(
                f"There is no rule {name!r}. {suggest(name, RULES)} A rule of your own needs reads "
                "and threshold."
            )
        defaults = RULES[name].model_dump() if name in RULES else {}
        try:
            rules[name] = AlertRule.model_validate({**defaults, **change, "name": name})
        except ValidationError as cause:
            problems = "; ".join(
                f"{'.'.join(map(str, error['loc']))} {error['msg'].removeprefix('Value error, ')}"
                for error in cause.errors()
            ).strip()
            raise ConfigurationError(f"The rule {name!r} cannot be used: {problems}.") from None
    return rules

"""The metrics of a project: unit, meaning and labels of every figure that is stored by day."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from datetime import date, datetime, timedelta

from rlhf_pipeline.core.errors import ConfigurationError, NotFound
from rlhf_pipeline.core.monitoring import MetricPoint


@dataclass(frozen=True)
class Metric:
    """One kind of figure. `stage` is the asset that writes it; without one, a sensor or an
    application in production does. `is_count_of_day` marks amounts of one day, which are written
    only once they are above 0.
    """

    name: str
    unit: str
    description: str
    labels: tuple[str, ...] = ()
    stage: str | None = None
    is_count_of_day: bool = False


METRICS: dict[str, Metric] = {
    metric.name: metric
    for metric in (
        Metric(
            "votes.cast",
            "votes",
            "Votes of the day, revisions and skips among them.",
            ("source",),
            stage="votes",
            is_count_of_day=True,
        ),
        Metric(
            "votes.seconds",
            "seconds",
            "Mean time that people took for a vote of the day, skips left out.",
            stage="votes",
        ),
        Metric(
            "votes.idle_hours", "hours", "Time in which nobody voted although a comparison waited."
        ),
        Metric("queue.open", "judgements", "Judgements that wait for annotators."),
        Metric(
            "queue.oldest_hours",
            "hours",
            "Time since the oldest waiting judgement was offered to annotators.",
        ),
        Metric(
            "spend.amount",
            "currency",
            "Money spent on generation during the day, unconfirmed charges included, in the "
            "currency of the prices.",
            ("lane",),
            is_count_of_day=True,
        ),
        Metric(
            "agreement.rate",
            "share",
            "Share of pairs of the day's votes on one comparison with the same choice.",
            stage="votes",
        ),
        Metric(
            "model.accuracy",
            "share",
            "Share of votes for the side with the higher score, over the calibration window that "
            "ends on the day; calibration does not change it.",
            ("reward_model",),
            stage="drift_report",
        ),
        Metric(
            "model.accuracy_ceiling",
            "share",
            "Noise ceiling of the votes on the same comparisons: the accuracy of a perfect model.",
            ("reward_model",),
            stage="drift_report",
        ),
        Metric(
            "model.day_accuracy",
            "share",
            "Share of the day's own votes that were predicted right, by the model that predicted "
            "most of them.",
            ("reward_model",),
            stage="drift_report",
        ),
        Metric(
            "model.day_accuracy_ceiling",
            "share",
            "Noise ceiling of the day's votes on the same comparisons.",
            ("reward_model",),
            stage="drift_report",
        ),
        Metric(
            "model.accuracy_gap",
            "share",
            "Noise ceiling minus accuracy.",
            ("reward_model",),
            stage="drift_report",
        ),
        Metric(
            "model.ece",
            "share",
            "Expected calibration error over that window, without the bias that noise adds.",
            ("reward_model",),
            stage="drift_report",
        ),
        Metric(
            "model.calibration_slope",
            "",
            "Calibration slope over that window: 1 is calibrated, below 1 overconfident.",
            ("reward_model",),
            stage="drift_report",
        ),
        Metric(
            "groups.accuracy",
            "share",
            "Share of a group's votes that were predicted correctly, over the calibration window "
            "that ends on the day; `by` is category, source or annotator_group.",
            ("reward_model", "by", "group"),
            stage="drift_report",
        ),
        Metric(
            "groups.accuracy_ceiling",
            "share",
            "Noise ceiling of the group's votes in that window.",
            ("reward_model", "by", "group"),
            stage="drift_report",
        ),
        Metric(
            "groups.ece",
            "share",
            "Expected calibration error on them, without the bias that noise adds.",
            ("reward_model", "by", "group"),
            stage="drift_report",
        ),
        Metric(
            "groups.calibration_slope",
            "",
            "Calibration slope on them.",
            ("reward_model", "by", "group"),
            stage="drift_report",
        ),
        Metric(
            "versions.accuracy",
            "share",
            "Share of the held-out votes since the last change of taste that a version of the "
            "reward model predicts correctly; the same votes for all versions of a run.",
            ("reward_model",),
            stage="calibration",
        ),
        Metric(
            "versions.accuracy_ceiling",
            "share",
            "Noise ceiling of all votes that the run read.",
            ("reward_model",),
            stage="calibration",
        ),
        Metric(
            "versions.ece",
            "share",
            "Expected calibration error on those votes, without the bias that noise adds.",
            ("reward_model",),
            stage="calibration",
        ),
        Metric(
            "drift.verdict",
            "",
            "Worst verdict of the day's drift report: 0 stable, 1 warning, 2 drift.",
            ("space",),
            stage="drift_report",
        ),
        Metric(
            "policy.reward",
            "logits",
            "Mean score of the deployed policy's completions of the day.",
            ("policy", "reward_model"),
            stage="drift_report",
        ),
        Metric(
            "policy.refusals",
            "share",
            "Share of refusals and empty texts among them.",
            ("policy",),
            stage="drift_report",
        ),
        Metric(
            "policy.length", "characters", "Their mean length.", ("policy",), stage="drift_report"
        ),
        Metric(
            "policy.win_rate",
            "share",
            "Win rate of a candidate policy against the champion, judged by the reward model.",
            ("policy",),
            stage="evaluation",
        ),
        Metric(
            "production.quality",
            "share",
            "Mean quality of interactions in production, each from 0 to 1.",
            ("model",),
        ),
        Metric(
            "production.satisfaction",
            "share",
            "Mean satisfaction of users with an interaction, each from 0 to 1.",
            ("model",),
        ),
        Metric(
            "production.rating",
            "stars",
            "Mean rating of answers by users, each from 1 to 5.",
            ("model",),
        ),
        Metric(
            "production.latency",
            "seconds",
            "Mean time until an interaction was answered.",
            ("model",),
        ),
        Metric(
            "production.latency_p50",
            "seconds",
            "Time within which half of the served answers were complete.",
            ("model",),
        ),
        Metric(
            "production.latency_p95",
            "seconds",
            "Time within which 95 % of the served answers were complete.",
            ("model",),
        ),
        Metric("production.errors", "share", "Share of interactions that failed.", ("model",)),
        Metric(
            "production.deflected",
            "share",
            "Share of interactions that needed no person.",
            ("model",),
        ),
        Metric(
            "production.resolve_time",
            "seconds",
            "Mean time until a user's request was resolved.",
            ("model",),
        ),
        Metric(
            "production.adoption",
            "share",
            "Share of users who could use the model and did.",
            ("model",),
        ),
        Metric("production.cost", "currency", "Mean cost of an interaction.", ("model",)),
        Metric(
            "production.tokens",
            "tokens",
            "Mean length of an interaction, prompt and answer together.",
            ("model",),
        ),
        Metric("champion.age_days", "days", "Time since the champion was promoted.", ("kind",)),
        Metric(
            "runs.failed", "runs", "Runs of the day that failed.", ("job",), is_count_of_day=True
        ),
        Metric(
            "checks.failed",
            "checks",
            "Asset checks of the day that failed.",
            ("check",),
            is_count_of_day=True,
        ),
        Metric("sensors.lag_seconds", "seconds", "Time since a sensor last ticked.", ("sensor",)),
        Metric("freshness.hours", "hours", "Time since an asset was materialised.", ("asset",)),
        Metric("daemon.silent_seconds", "seconds", "Time since the Dagster daemon last reported."),
    )
}


PRODUCTION = tuple(name for name in METRICS if name.startswith("production."))

SILENCE, LAG = "daemon.silent_seconds", "sensors.lag_seconds"  # SILENCE is 0 at each tick


def let_silence_grow(points: Sequence[MetricPoint], now: datetime) -> list[MetricPoint]:
    """The points, with the daemon's silence up to `now` instead of up to its last tick; the lag of
    its sensors grows with it.
    """
    last = next((p.measured_at for p in points if p.name == SILENCE and p.value is not None), now)

    def grow(point: MetricPoint) -> MetricPoint:
        if point.name not in (SILENCE, LAG) or point.value is None:
            return point
        # a sensor that was stopped was measured long ago, but the daemon ticks
        since = max(last, point.measured_at)
        grown = point.value + max(timedelta(), now - since).total_seconds()
        return point.model_copy(update={"value": grown})

    return [grow(point) for point in points]


def reset_past_counts(points: Iterable[MetricPoint], today: date) -> list[MetricPoint]:
    """The points; a count whose newest day is over is 0 today."""
    return [
        point.model_copy(update={"day": today, "n": 0, "value": 0.0})
        if METRICS[point.name].is_count_of_day and point.day < today
        else point
        for point in points
    ]


def require_metrics(names: Iterable[str]) -> list[Metric]:
    """The metrics of these names. Raises NotFound for an unknown one."""
    metrics = []
    for name in names:
        if name not in METRICS:
            raise NotFound(f"No metric {name!r}. There are {', '.join(sorted(METRICS))}.")
        metrics.append(METRICS[name])
    return metrics


def parse_labels(texts: Iterable[str]) -> dict[str, str]:
    """Labels from texts such as `lane=openai/gpt-4o`. Raises ConfigurationError for another form.

    >>> parse_labels(["lane=openai/gpt-4o"])
    {'lane': 'openai/gpt-4o'}
    """
    labels = {}
    for text in texts:
        name, equals, value = text.partition("=")
        if not (name and equals):
            raise ConfigurationError(f"Invalid label {text!r}; expected name=value.")
        labels[name] = value
    return labels


def metrics_of_stage(stage: str) -> list[str]:
    """Names of the metrics that an asset writes."""
    return [name for name, metric in METRICS.items() if metric.stage == stage]

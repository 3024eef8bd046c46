"""Formats the metrics of a project and of this process for Prometheus.

Imports prometheus_client at the first scrape, so that a web app without scrapes does not load it.
"""

from __future__ import annotations

from bisect import bisect_left
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import groupby
from typing import TYPE_CHECKING

from rlhf_pipeline.core.metric_catalogue import METRICS
from rlhf_pipeline.core.monitoring import MetricPoint

if TYPE_CHECKING:
    from prometheus_client import Metric

CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"
# seconds; a vote takes some milliseconds, and half a minute where the database is locked
BOUNDS = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0)


@dataclass
class LatencyHistogram:
    """Durations in seconds, counted by bucket. Counting is cheap; only one thread may do it."""

    # by bucket of BOUNDS, and one for what is longer
    counts: list[int] = field(default_factory=lambda: [0] * (len(BOUNDS) + 1))
    n: int = 0
    total: float = 0.0

    def observe(self, seconds: float) -> None:
        self.counts[bisect_left(BOUNDS, seconds)] += 1
        self.n += 1
        self.total += seconds


@dataclass
class RequestCounts:
    """What this process answered: requests by class of status, and the duration of those that cast
    votes.
    """

    by_status: Counter[str] = field(default_factory=Counter)
    vote_seconds: LatencyHistogram = field(default_factory=LatencyHistogram)


def render_metrics(points: Sequence[MetricPoint], n_votes: int, requests: RequestCounts) -> bytes:
    """The exposition of the newest points of a project, its number of votes, and the requests to
    this process.

    A point without a value has no sample: a gap is not 0.
    """
    from prometheus_client import CollectorRegistry, generate_latest

    registry = CollectorRegistry()
    registry.register(_Families([*_of_process(n_votes, requests), *_of_points(points)]))
    return generate_latest(registry)


def sample_name(metric: str) -> str:
    """The name of a metric in Prometheus.

    >>> sample_name("queue.oldest_hours")
    'rlhf_queue_oldest_hours'
    """
    return f"rlhf_{metric.replace('.', '_')}"


class _Families:
    """A collector of families that are ready."""

    def __init__(self, families: Sequence[Metric]):
        self._families = families

    def collect(self) -> Iterator[Metric]:
        yield from self._families


def _of_process(n_votes: int, requests: RequestCounts) -> Iterator[Metric]:
    from prometheus_client.core import CounterMetricFamily, HistogramMetricFamily

    yield CounterMetricFamily("rlhf_votes", "Votes recorded in the project.", value=n_votes)
    answered = CounterMetricFamily(
        "rlhf_http_requests",
        "Requests that this process answered, by class of status.",
        labels=["status"],
    )
    for status, n in sorted(dict(requests.by_status).items()):
        answered.add_metric([status], n)
    yield answered
    seconds = requests.vote_seconds
    buckets, n = [], 0
    for bound, count in zip([*map(str, BOUNDS), "+Inf"], list(seconds.counts), strict=True):
        n += count
        buckets.append((bound, n))
    yield HistogramMetricFamily(
        "rlhf_vote_request_seconds",
        "Time in which this process answered requests that cast votes.",
        buckets=buckets,
        sum_value=seconds.total,
    )


def _of_points(points: Iterable[MetricPoint]) -> Iterator[Metric]:
    from prometheus_client.core import GaugeMetricFamily

    measured = GaugeMetricFamily(
        "rlhf_metric_measured_timestamp_seconds",
        "When the newest point of a metric was measured, in seconds since 1970.",
        labels=["metric"],
    )
    ordered = sorted(points, key=lambda point: point.name)
    for name, group in groupby(ordered, key=lambda point: point.name):
        of_metric = list(group)
        metric = METRICS[name]
        unit = f" ({metric.unit})" if metric.unit else ""
        yield from (
            _build_gauges(f"{sample_name(name)}{suffix}", f"{text}{unit}", metric.labels, values)
            for suffix, text, values in (
                ("", metric.description, [(p.labels, p.value) for p in of_metric]),
                ("_low", f"Lower bound of {name}", [(p.labels, p.low) for p in of_metric]),
                ("_high", f"Upper bound of {name}", [(p.labels, p.high) for p in of_metric]),
            )
            if any(value is not None for _, value in values)
        )
        newest = max(point.measured_at for point in of_metric)
        measured.add_metric([name], newest.timestamp())
    yield measured


def _build_gauges(
    name: str,
    text: str,
    labels: Sequence[str],
    values: Iterable[tuple[Mapping[str, str], float | None]],
) -> Metric:
    from prometheus_client.core import GaugeMetricFamily

    family = GaugeMetricFamily(name, text, labels=labels)
    for value_labels, value in values:
        if value is not None:
            family.add_metric([value_labels.get(label, "") for label in labels], value)
    return family

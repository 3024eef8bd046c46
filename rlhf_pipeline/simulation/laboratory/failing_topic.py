"""One of eight topics fails: whether the day's first cluster is that topic."""

from collections.abc import Sequence
from dataclasses import dataclass

from rlhf_pipeline.core.records import Interval
from rlhf_pipeline.simulation.laboratory.base import LabBar, Observation, measure_share
from rlhf_pipeline.simulation.topic_worlds import TOPICS, draw_topic_day
from rlhf_pipeline.watch.drift.clusters import semantic_clusters

ERROR_RATE, LEAST_PURITY = 0.65, 0.8


@dataclass(frozen=True)
class FailingTopic:
    """Share of days whose first cluster consists of the failing topic by more than LEAST_PURITY."""

    name: str = "failing_topic"
    title: str = "one of eight topics errs in 65 % instead of 20 %"
    group: str = "Topics"
    unit: str = f"top cluster of purity > {LEAST_PURITY:g}"

    @property
    def bar(self) -> LabBar:
        return LabBar(limit=1.0, is_upper=False)

    def observe(self, seed: int) -> Observation:
        failing = list(TOPICS)[seed % len(TOPICS)]
        day = draw_topic_day(seed, failing, error_rate=ERROR_RATE)
        clusters = semantic_clusters(day.reference, day.current, prompts=day.prompts)
        top = clusters.clusters[0]
        topics = [day.topics[comparison_id] for comparison_id in top.comparison_ids]
        purity = topics.count(failing) / len(topics)
        return Observation(n_counts=int(top.is_failing and purity > LEAST_PURITY))

    def measure(self, observations: Sequence[Observation]) -> Interval:
        return measure_share(observations)


FAILING_TOPIC = FailingTopic()

"""A failing topic is the top cluster and named by its words; without one nothing fails."""

import pytest

from benchmarks.topic_worlds import TOPICS, draw_topic_day
from rlhf_pipeline.watch.drift.cluster_history import DayClusters
from rlhf_pipeline.watch.drift.clusters import semantic_clusters


def cluster_day(seed: int, failing: str | None) -> tuple[DayClusters, dict[str, str]]:
    drawn = draw_topic_day(seed, failing, error_rate=0.65)
    shift = semantic_clusters(drawn.reference, drawn.current, prompts=drawn.prompts)
    return shift, drawn.topics


@pytest.mark.parametrize("seed", range(8))
def test_a_planted_failing_topic_is_the_top_cluster(seed: int) -> None:
    failing = list(TOPICS)[seed]
    shift, topics = cluster_day(seed, failing)
    top = shift.clusters[0]
    members = [topics[comparison_id] for comparison_id in top.comparison_ids]
    assert members.count(failing) / len(members) > 0.8
    assert top.is_failing
    assert set(top.name.split(" · ")) <= set(TOPICS[failing].split())
    assert top.lift is not None
    assert top.lift.low > 1


def test_equal_error_rates_have_no_failing_topic() -> None:
    n_failing = sum(
        cluster.is_failing for seed in range(12) for cluster in cluster_day(seed, None)[0].clusters
    )
    assert n_failing <= 1

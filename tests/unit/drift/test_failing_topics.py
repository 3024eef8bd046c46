"""A failing topic is the top cluster and named by its words; without one nothing fails."""

import numpy as np
import pytest

from rlhf_pipeline.drift.cluster_tree import PointTree, Scan, scale_to_directions
from rlhf_pipeline.drift.clusters import ClusterParams, semantic_clusters
from rlhf_pipeline.records import DayClusters
from rlhf_pipeline.simulation.topic_worlds import TOPICS, draw_topic_day


def cluster_day(
    seed: int, failing: str | None, *, error: float = 0.2, most: int = 8
) -> tuple[DayClusters, dict[str, str]]:
    drawn = draw_topic_day(seed, failing, error_rate=error)
    params = ClusterParams(max_clusters=most)
    made = semantic_clusters(
        drawn.reference, drawn.current, params, day="2026-01-05", prompts=drawn.prompts
    )
    return made, drawn.topics


@pytest.mark.parametrize("most", [8, 3])  # as many clusters as topics, and too few for them
def test_a_planted_failing_topic_is_the_top_cluster(most: int) -> None:
    for seed in range(8):
        failing = list(TOPICS)[seed % len(TOPICS)]
        made, topics = cluster_day(seed, failing, error=0.65, most=most)
        top = made.clusters[0]
        members = [topics[one] for one in top.comparison_ids]
        purity = members.count(failing) / len(members)
        assert purity > 0.8, (seed, purity)
        words = set(TOPICS[failing].split())
        assert top.is_failing
        assert set(top.name.split(" · ")) <= words
        assert top.lift is not None
        assert top.lift.low > 1
        assert top.p_lift is not None
        assert top.p_lift <= 0.01
        assert top.cluster_id.startswith("2026-01-05-")


def test_nothing_fails_where_all_topics_err_alike() -> None:
    n_failing = sum(
        cluster.is_failing for seed in range(12) for cluster in cluster_day(seed, None)[0].clusters
    )
    assert n_failing <= 1


def test_the_search_over_branches_keeps_its_error_rate() -> None:
    rng = np.random.default_rng(0)
    tree = PointTree(scale_to_directions(rng.normal(size=(150, 6))))
    scan = Scan(least=8, alpha=0.1, n_permutations=199, seed=0)
    n_found = sum(bool(tree.find_failing(rng.integers(2, size=150) * 1.0, scan)) for _ in range(60))
    assert n_found <= 12  # 6 expected; 13 or more have probability 0.5 %


def test_two_failing_parts_are_kept_apart_from_what_lies_between() -> None:
    centres = np.array([[10.0, 1, 0], [10, 0, 0], [10, -1, 0], [-10, 0, 3], [-10, 0, -3]])
    kind = np.repeat(np.arange(5), 60)
    rng = np.random.default_rng(1)
    points = centres[kind] + rng.normal(scale=0.1, size=(300, 3))
    wrong = (rng.random(300) < np.array([0.7, 0.1, 0.7, 0.1, 0.1])[kind]).astype(float)
    found = PointTree(points).find_failing(wrong, Scan(10, 0.01, 999, seed=0))
    assert sorted(sorted(set(kind[branch.members])) for branch in found) == [[0], [2]]


@pytest.mark.parametrize("value", [0.0, 1.0])
def test_equal_errors_have_no_failing_branch(value: float) -> None:
    points = np.random.default_rng(2).normal(size=(60, 4))
    assert PointTree(points).find_failing(np.full(60, value), Scan(8, 0.05, 199, seed=0)) == []

"""A failing topic is the top cluster and named by its words; without one nothing fails."""

import numpy as np
import pandas as pd
import pytest
from sklearn.decomposition import TruncatedSVD
from sklearn.feature_extraction.text import TfidfVectorizer

from rlhf_pipeline.drift.cluster_tree import PointTree, Scan, scale_to_directions
from rlhf_pipeline.drift.clusters import ClusterParams, semantic_clusters
from rlhf_pipeline.drift.reference import Window
from rlhf_pipeline.records import DayClusters

TOPICS = {
    "cooking": "lentils soup oven recipe butter spices dinner vegetables pan flour",
    "travel": "train ticket airport luggage hotel island passport border map journey",
    "law": "contract lease landlord court lawyer clause notice tenant deposit fine",
    "garden": "roses soil seeds watering compost hedge lawn pruning tulips greenhouse",
    "code": "python function loop list variable bug script dictionary error test",
    "health": "headache fever doctor sleep vitamin exercise blood allergy dose muscle",
    "music": "guitar chord melody concert choir rhythm violin lyrics drums piano",
    "money": "loan interest savings tax budget pension invoice bank salary rent",
}
FRAMES = (
    "Please explain to me how {} goes with {} and {}.",
    "What should I know about {}, {} or {}?",
    "Write a short text on {} and {}, with {}.",
    "My question is about {}: is {} better than {}?",
)
N_REFERENCE, N_DAY = 200, 600


def write_prompts(n: int, rng: np.random.Generator) -> tuple[list[str], np.ndarray]:
    names = list(TOPICS)
    topic = rng.integers(len(names), size=n)
    texts = [
        FRAMES[rng.integers(len(FRAMES))].format(
            *rng.choice(TOPICS[names[t]].split(), 3, replace=False)
        )
        for t in topic
    ]
    return texts, topic


def embed_by_words(texts: list[str]) -> np.ndarray:
    """Latent semantic analysis: words that occur together point the same way."""
    counts = TfidfVectorizer(sublinear_tf=True, stop_words="english").fit_transform(texts)
    return TruncatedSVD(24, random_state=0).fit_transform(counts).astype(np.float32)


def cluster_day(
    seed: int, failing: int | None, *, error: float = 0.2, most: int = 8
) -> tuple[DayClusters, np.ndarray]:
    rng = np.random.default_rng(seed)
    texts, topic = write_prompts(N_REFERENCE + N_DAY, rng)
    is_day = np.arange(len(texts)) >= N_REFERENCE
    rate = np.where(is_day & (topic == failing), error, 0.2)
    wrong = (rng.random(len(texts)) < rate).astype(float)
    ids = np.array([f"c{i:04d}" for i in range(len(texts))])
    points = embed_by_words(texts)

    def window(inside: np.ndarray) -> Window:
        n = int(inside.sum())
        rows = {
            "comparison_id": ids[inside],
            "prompt_id": ids[inside],
            "prompt_length": 1,
            "completion_length": 1,
            "p": 0.7,
            "error": wrong[inside],
            "n_votes": 1,
            "embedding_row": np.arange(n),
        }
        return Window("m", pd.DataFrame(rows), points[inside])

    prompts = dict(zip(ids, texts, strict=True))
    params = ClusterParams(max_clusters=most)
    before, now = window(~is_day), window(is_day)
    return semantic_clusters(before, now, params, day="2026-01-05", prompts=prompts), topic


@pytest.mark.parametrize("most", [8, 3])  # as many clusters as topics, and too few for them
def test_a_planted_failing_topic_is_the_top_cluster(most: int) -> None:
    for seed in range(8):
        failing = seed % len(TOPICS)
        made, topic = cluster_day(seed, failing, error=0.65, most=most)
        top = made.clusters[0]
        members = [int(one[1:]) for one in top.comparison_ids]
        purity = float((topic[members] == failing).mean())
        assert purity > 0.8, (seed, purity)
        words = set(TOPICS[list(TOPICS)[failing]].split())
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

"""Clusters of two windows: what grew, shrank and got worse is found; what did not is left alone."""

import numpy as np
import pandas as pd
import pytest

from rlhf_pipeline.core.errors import InvalidScores, NotEnoughData
from rlhf_pipeline.watch.drift.cluster_history import DayClusters
from rlhf_pipeline.watch.drift.clusters import ClusterParams, semantic_clusters
from rlhf_pipeline.watch.drift.reference import Window

MODEL = "demo.reward_model@1"
DIMENSIONS = 32
CENTRES = 6 * np.eye(4, DIMENSIONS)


def window(
    seed: int, sizes: tuple[int, ...], errors: tuple[float, ...], *, name: str = "c", pairs: int = 1
) -> Window:
    """`sizes[i]` prompts around centre i, `pairs` comparisons of each, of which a share `errors[i]`
    is wrong.
    """
    rng = np.random.default_rng(seed)
    kind = np.repeat(np.arange(len(sizes)), sizes)
    n = len(kind)
    wrong = np.concatenate(
        [np.arange(size) < round(error * size) for size, error in zip(sizes, errors, strict=True)]
    ).astype(float)
    embeddings = (CENTRES[kind] + rng.normal(size=(n, DIMENSIONS))).astype(np.float32)
    rows = pd.DataFrame(
        {
            "comparison_id": [
                f"{name}{k}-{i:04d}-{j}" for i, k in enumerate(kind) for j in range(pairs)
            ],
            "prompt_id": [f"{name}p{i}" for i in range(n) for _ in range(pairs)],
            "prompt_length": 40,
            "completion_length": 100,
            "p": 0.7,
            "error": np.repeat(wrong, pairs),
            "n_votes": 1,
            "embedding_row": [i if j == 0 else -1 for i in range(n) for j in range(pairs)],
        }
    )
    return Window(MODEL, rows, embeddings)


def find_clusters(reference: Window, current: Window, **params: float) -> DayClusters:
    return semantic_clusters(reference, current, ClusterParams(max_clusters=4, **params))


def kind_of(examples: tuple[str, ...]) -> set[str]:
    return {example[1] for example in examples}


def test_growing_worse_cluster_is_first_and_shrunken_is_named() -> None:
    before = window(0, (80, 80, 80, 80), (0.2, 0.2, 0.2, 0.2), name="r")
    now = window(1, (160, 30, 65, 65), (0.6, 0.2, 0.2, 0.2))
    shift = find_clusters(before, now)
    first = shift.clusters[0]
    assert kind_of(first.examples) == {"0"}
    assert (first.is_worse, first.change) == (True, "grew")
    assert first.share_reference.value == pytest.approx(0.25)
    assert first.share_current.value == pytest.approx(0.5)
    assert first.share_current.low < 0.5 < first.share_current.high
    assert first.error_current is not None
    assert first.error_current.value == pytest.approx(0.6)
    assert [kind_of(c.examples) for c in shift.clusters if c.change == "shrank"] == [{"1"}]
    assert [c.change for c in shift.clusters if kind_of(c.examples) <= {"2", "3"}] == [
        "steady",
        "steady",
    ]
    assert not any(c.is_worse for c in shift.clusters[1:])
    assert shift.p_value < 0.001


def test_equal_windows_have_no_changed_cluster() -> None:
    changed = 0
    for seed in range(20):
        sizes = np.random.default_rng(seed).multinomial(200, [0.25] * 4, size=2)
        shift = find_clusters(
            *(
                window(100 * seed + i, tuple(s), (0.25,) * 4, name="rc"[i])
                for i, s in enumerate(sizes)
            )
        )
        changed += sum(c.is_worse or c.change != "steady" for c in shift.clusters)
    assert changed <= 1  # 80 clusters at a false discovery rate of 1 %


def test_clusters_follow_meaning_not_length() -> None:
    """A common factor on all columns, as of longer completions, does not move a point to another
    cluster.
    """
    before, now = window(0, (80, 80), (0.2, 0.2), name="r"), window(1, (80, 80), (0.2, 0.2))
    longer = Window(
        MODEL,
        now.rows,
        now.embeddings * np.random.default_rng(2).uniform(0.7, 3, size=(160, 1)).astype(np.float32),
    )
    for cluster in semantic_clusters(before, longer, ClusterParams(max_clusters=2)).clusters:
        assert len(kind_of(cluster.examples)) == 1
        assert cluster.share_current.value == pytest.approx(0.5, abs=0.03)


def test_prompt_counts_once_in_clusters() -> None:
    single, many = (
        find_clusters(
            window(0, (40, 40), (0.5, 0), name="r"), window(1, (40, 40), (0.5, 0), pairs=n)
        )
        for n in (1, 5)
    )
    pairs = list(zip(single.clusters, many.clusters, strict=True))
    assert single.n_current == many.n_current == 80
    assert all(
        a.error_current == b.error_current and a.share_current == b.share_current for a, b in pairs
    )


def test_too_few_rows_are_named() -> None:
    enough, few = window(0, (60,), (0.2,), name="r"), window(1, (12,), (0.2,))
    with pytest.raises(NotEnoughData, match="day's window has 12 embedded prompts, 30 are needed"):
        semantic_clusters(enough, few)
    with pytest.raises(NotEnoughData, match=r"reference window has 0 .*day's window has 12"):
        semantic_clusters(None, few)
    same = Window(MODEL, enough.rows, np.ones_like(enough.embeddings))
    with pytest.raises(NotEnoughData, match="all embeddings are equal"):
        semantic_clusters(same, same)


def test_embeddings_of_two_encoders_are_refused() -> None:
    enough = window(0, (60,), (0.2,), name="r")
    with pytest.raises(InvalidScores, match="32 and 8 dimensions"):
        semantic_clusters(enough, Window(MODEL, enough.rows, enough.embeddings[:, :8]))
    broken = enough.embeddings.copy()
    broken[3, 3] = np.nan
    with pytest.raises(InvalidScores, match="NaN"):
        semantic_clusters(enough, Window(MODEL, enough.rows, broken))

"""A cluster keeps its id from day to day while its words stay."""

from rlhf_pipeline.core.intervals import interval_of_share
from rlhf_pipeline.watch.drift.cluster_history import (
    DayClusters,
    PromptCluster,
    find_failing_ids,
    follow,
)
from rlhf_pipeline.watch.drift.cluster_terms import distinctive_terms

SOUP = ("lentil soup recipe", "onion soup recipe")
TRAIN = ("train ticket border", "train station luggage")
LAW = ("tenant court fine", "landlord court lease")
SHARE = interval_of_share(0.5, 40)


def day_of(day: str, *topics: tuple[str, ...], error: float = 0.3) -> DayClusters:
    terms = distinctive_terms(topics)
    return DayClusters(
        day=day,
        model_version="m",
        clusters=tuple(
            PromptCluster(
                cluster_id=f"{day}-{letter}",
                name=letter,
                terms=terms[i],
                share_reference=SHARE,
                share_current=SHARE,
                p_share=1.0,
                change="steady",
                error_reference=None,
                error_current=interval_of_share(error, 20),
                p_error=None,
                is_worse=False,
                lift=None,
                p_lift=None,
                is_failing=False,
                examples=(),
                comparison_ids=(),
            )
            for i, letter in zip(range(len(topics)), "ABC", strict=False)
        ),
        n_reference=40,
        n_current=40,
        p_value=1.0,
        explained=0.5,
    )


def test_a_cluster_keeps_its_id_and_collects_its_days() -> None:
    first = follow(day_of("2026-01-01", SOUP, TRAIN, error=0.2), [])
    second = follow(day_of("2026-01-02", LAW, SOUP, error=0.4), [first])
    third = follow(day_of("2026-01-03", TRAIN, SOUP, error=0.6), [second, first])
    assert [c.cluster_id for c in second.clusters] == ["2026-01-02-A", "2026-01-01-A"]
    assert [c.cluster_id for c in third.clusters] == ["2026-01-01-B", "2026-01-01-A"]
    soup = third.clusters[1]
    assert [(d.day, d.error, d.n_prompts) for d in soup.trend] == [
        ("2026-01-01", 0.2, 20),
        ("2026-01-02", 0.4, 20),
        ("2026-01-03", 0.6, 20),
    ]
    assert [d.day for d in third.clusters[0].trend] == ["2026-01-01", "2026-01-03"]


def test_failing_comparisons_are_in_the_latest_failing_clusters() -> None:
    days = [day_of("2026-01-01", SOUP, TRAIN), day_of("2026-01-02", SOUP, TRAIN)]
    states = [(("a", True), ("b", True)), (("c", True), ("d", False))]
    followed: list[DayClusters] = []
    for day, marked in zip(days, states, strict=True):
        clusters = tuple(
            cluster.model_copy(update={"comparison_ids": (name,), "is_failing": failed})
            for cluster, (name, failed) in zip(day.clusters, marked, strict=True)
        )
        followed.append(follow(day.model_copy(update={"clusters": clusters}), followed))
    assert find_failing_ids(followed[::-1]) == {"a", "c"}

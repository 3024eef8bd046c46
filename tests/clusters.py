"""Clusters of prompts, as a drift report stores them."""

from collections.abc import Sequence

from rlhf_pipeline.core.artefacts import Artefacts
from rlhf_pipeline.core.intervals import interval_of_ratio, interval_of_share
from rlhf_pipeline.core.object_stores import put
from rlhf_pipeline.core.records import Interval
from rlhf_pipeline.watch.drift.cluster_history import DayClusters, PromptCluster


def failing_cluster(cluster_id: str, comparison_ids: Sequence[str]) -> PromptCluster:
    return PromptCluster(
        cluster_id=cluster_id,
        name="lentils · soup",
        terms={"lentils": 0.8, "soup": 0.6},
        share_reference=interval_of_share(0.1, 100),
        share_current=interval_of_share(0.2, 100),
        p_share=0.03,
        change="steady",
        error_reference=interval_of_share(0.2, 10),
        error_current=interval_of_share(0.6, 20),
        p_error=0.004,
        is_worse=True,
        lift=interval_of_ratio(0.6, 20, 0.2, 80),
        p_lift=0.001,
        is_failing=True,
        examples=tuple(comparison_ids[:1]),
        comparison_ids=tuple(comparison_ids),
    )


def write_clusters(files: Artefacts, day: str, *clusters: PromptCluster) -> None:
    record = DayClusters(
        day=day,
        model_version="demo.reward_model@1",
        clusters=clusters,
        n_reference=100,
        n_current=100,
        p_value=0.2,
        explained=0.5,
        noise_ceiling=Interval(value=0.9, low=0.85, high=0.94, n=60),
    )
    put(files.report_path("clusters", day), record.model_dump_json().encode())

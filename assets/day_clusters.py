"""Clusters of prompts for drift reports: which days they cover, and which earlier ones they
continue.
"""

from dataclasses import dataclass, field
from datetime import date, timedelta

from rlhf_pipeline.artefacts import Artefacts
from rlhf_pipeline.champions import Champions
from rlhf_pipeline.drift.cluster_history import DAYS_FOLLOWED, follow
from rlhf_pipeline.drift.clusters import ClusterParams, semantic_clusters
from rlhf_pipeline.drift.reference import Embed, Window, current_window
from rlhf_pipeline.errors import InvalidScores, ModelError, NotEnoughData
from rlhf_pipeline.records import DayClusters
from rlhf_pipeline.reports.drift_page import DayEvidence
from rlhf_pipeline.votes import Quarantines


@dataclass
class ClusterSeries:
    """The clusters of earlier days, and the new ones of the days that are reported."""

    earlier: list[DayClusters] = field(default_factory=list)
    new: list[DayClusters] = field(default_factory=list)

    @classmethod
    def load(cls, first_day: str, files: Artefacts) -> "ClusterSeries":
        earlier = [day for day in files.cluster_days() if day < first_day][-DAYS_FOLLOWED:]
        return cls(list(files.read_clusters(earlier).values()))

    def add_day(self, found: DayEvidence, params: ClusterParams) -> DayClusters | str:
        """The clusters of both windows' prompts, named and followed, or why there are none."""
        windows = [w for w in (found.reference, found.current) if w is not None]
        texts = found.texts(sorted({i for w in windows for i in w.rows["comparison_id"]}))
        try:
            clusters = semantic_clusters(
                found.reference,
                found.current,
                params,
                day=found.day,
                prompts={i: prompt for i, (prompt, _) in texts.items()},
            )
        except NotEnoughData as few:
            return str(few)
        clusters = clusters.model_copy(update={"noise_ceiling": found.noise_ceiling})
        self.new.append(follow(clusters, [*self.earlier, *self.new]))
        return self.new[-1]


def cluster_window(
    found: DayEvidence,
    files: Artefacts,
    champions: Champions,
    params: ClusterParams,
    quarantines: Quarantines,
) -> Window | None:
    """The judged comparisons of the last `cluster_days` days that the day's model predicted,
    without quarantined votes.
    """
    if found.current is None or params.cluster_days == 1:
        return found.current
    last = date.fromisoformat(found.day)
    days = [(last - timedelta(days=i)).isoformat() for i in range(params.cluster_days)]
    log = quarantines.drop(files.read_days("reflection_log", days))
    label = found.current.model_version
    log = log[log["reward_model"] == label]
    embed, not_embedded = find_embedding(champions, label)
    return current_window(
        log,
        champions.store.comparisons.with_ids(log["comparison_id"].unique().tolist()),
        model_version=label,
        embed=embed,
        not_embedded=not_embedded,
    )


def find_embedding(champions: Champions, label: str) -> tuple[Embed | None, str | None]:
    """The model's embedding function, or why there is none: the model may need an encoder that is
    no longer available, or be deleted from the registry.

    Its predictions are stored, so the rest of the report does not need it.
    """
    try:
        judge = champions.judge(champions.version(label))
    except (ModelError, InvalidScores) as cause:
        return (
            None,
            f"{label} cannot be loaded, so its embeddings are missing. {cause}",
        )
    return (judge.reward_model.features if judge else None), None

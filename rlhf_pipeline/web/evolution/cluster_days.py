"""Keeps the clusters of past days in memory; a day is read again once its file was replaced."""

import threading
from datetime import date, datetime
from pathlib import PurePosixPath

from rlhf_pipeline.artefacts import Artefacts
from rlhf_pipeline.object_stores import list_written
from rlhf_pipeline.records import DayClusters
from rlhf_pipeline.web.memory_cache import ExpiringCache

PREFIX = "clusters_"  # of the names of files, before the day
MAX_DAYS = 120  # 0.3 MB each at 20 clusters of 125 comparisons


class ClusterDays:
    """The clusters of each day, without what only the pages of clusters show."""

    def __init__(self, files: Artefacts):
        self._files = files
        self._lock = threading.Lock()  # held while files are parsed
        self._known = ExpiringCache[tuple[str, datetime | None], DayClusters](MAX_DAYS)

    def read(self, first: date, last: date) -> list[DayClusters]:
        """Oldest first. Files that do not parse are left out."""
        written = {
            PurePosixPath(name).stem.removeprefix(PREFIX): written_at
            for name, written_at in list_written(self._files.base / "reports").items()
        }
        days = [day for day in self._files.cluster_days() if str(first) <= day <= str(last)]
        with self._lock:
            found = {day: self._known.get((day, written.get(day))) for day in days}
            absent = [day for day, known in found.items() if known is None]
            for day, clusters in self._files.read_clusters(absent).items():
                found[day] = slim = _leave_out_details(clusters)
                self._known.put((day, written.get(day)), slim)
        return [known for known in found.values() if known is not None]


def _leave_out_details(of: DayClusters) -> DayClusters:
    slim: dict[str, object] = {"terms": {}, "trend": (), "examples": ()}
    return of.model_copy(
        update={"clusters": tuple(one.model_copy(update=slim) for one in of.clusters)}
    )

"""Dagster's run launcher with a health check, so that run monitoring fails runs that were killed.

It is part of the library because Dagster's daemon imports it, from any folder.
"""

import os
from datetime import UTC, datetime, timedelta
from functools import lru_cache

import dagster as dg
import psutil
from dagster._core.launcher.base import CheckRunHealthResult, WorkerStatus  # not in the public API

from rlhf_pipeline.core.config import Settings, project_folder
from rlhf_pipeline.improve.retraining.jobs import longest_start
from rlhf_pipeline.store import Heartbeat, Store, homes

LOCATION = "rlhf_pipeline"  # as in workspace.yaml
FRESH = 0.25  # of `dead_after_seconds`: three heartbeats


class HeartbeatRunLauncher(dg.DefaultRunLauncher):
    """Reports a run as gone once its heartbeat stopped: Dagster's default launcher does not notice
    a run that was killed together with its code server, as in a power cut.
    """

    @property
    def supports_check_run_worker_health(self) -> bool:
        return True

    def check_run_worker_health(self, run: dg.DagsterRun) -> CheckRunHealthResult:
        record = self._instance.get_run_record_by_id(run.run_id)
        assert record is not None  # Dagster monitors it
        settings, store = _open_home()
        limit = timedelta(seconds=settings.dead_after_seconds)
        origin = run.remote_job_origin
        is_ours = origin is None or origin.location_name == LOCATION  # others do not beat
        beat, now = store.heartbeats.get(run.run_id), datetime.now(UTC)
        # A container of this host's name may have a process of its own under this number.
        is_fresh = beat is not None and now - beat.at < FRESH * limit
        # A run that ends beats no more and is not marked as ended yet.
        changed_at = max(record.update_timestamp, self._find_last_event(run.run_id))
        if is_ours and not is_fresh and is_dead(changed_at, beat, now, limit):
            return CheckRunHealthResult(WorkerStatus.NOT_FOUND, "no heartbeat, so it was killed")
        return CheckRunHealthResult(WorkerStatus.RUNNING)

    def _find_last_event(self, run_id: str) -> datetime:
        records = self._instance.get_records_for_run(run_id, limit=1, ascending=False).records
        seconds = records[0].event_log_entry.timestamp if records else 0.0
        return datetime.fromtimestamp(seconds, UTC)


@lru_cache(maxsize=1)
def _open_home() -> tuple[Settings, Store]:
    """As the definitions read them. Raises ConfigurationError where the daemon knows another home:
    there no run would have a heartbeat.
    """
    settings = Settings.read(folder=project_folder())
    homes.refuse_other_dagster_home(settings, os.environ)
    return settings, Store.of_home(settings)


def is_dead(changed_at: datetime, beat: Heartbeat | None, now: datetime, limit: timedelta) -> bool:
    """Whether the process of a run is gone: on this host there is none, or another host's has been
    silent for so long. `changed_at` is the last time at which the run is known to have lived.
    """
    if beat is None:
        # A run without a beat may still import and open the store. If it were failed while it
        # starts, it could go on beside the run that is requested in its place.
        return now - changed_at > longest_start(limit)
    if beat.host != os.uname().nodename:
        return now - beat.at > limit
    try:
        process = psutil.Process(beat.pid)
        # a younger one has got the number of the dead one
        is_young = process.create_time() > beat.at.timestamp()
        return bool(is_young or process.status() == psutil.STATUS_ZOMBIE)
    except psutil.NoSuchProcess:
        return True

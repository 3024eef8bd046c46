"""Housekeeping: every night deletes what `retention:` no longer keeps.

Never deleted: votes, decisions, the audit chain, predictions, evaluation splits, and the records
and metrics of models. It may be repeated at any time; what is left goes the next night.
"""

import shutil
from collections.abc import Callable
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from functools import partial
from pathlib import Path

import dagster as dg

from rlhf_pipeline.application.assets.retraining_decision import DECISION_TAG
from rlhf_pipeline.application.jobs.executors import light_executor
from rlhf_pipeline.application.jobs.loop import ENDED_STATUSES
from rlhf_pipeline.core.artefacts import Artefacts
from rlhf_pipeline.core.config import RetentionParams, Settings
from rlhf_pipeline.core.object_stores import list_written
from rlhf_pipeline.core.records import ModelVersion, TriggerDecision
from rlhf_pipeline.improve.loop_settings import LoopSettings
from rlhf_pipeline.registry import (
    KINDS,
    ListedModel,
    Registry,
    needed_versions,
    removable_versions,
    remove_files,
)
from rlhf_pipeline.store import Store

RUNS_AT_ONCE = 2000  # oldest first
JOB = "housekeeping"


@dataclass(frozen=True)
class Retention:
    """Everything of one home that has a time to live."""

    settings: Settings
    store: Store
    registry: Registry
    instance: dg.DagsterInstance
    now: datetime

    def delete(self) -> dict[str, int]:
        """Delete what is due; returns the number of things of each kind."""
        parts: dict[str, Callable[[], int]] = {
            "runs": self._delete_runs,
            "heartbeats": lambda: self.store.heartbeats.prune(self._cutoff(1)),
            "alert messages": lambda: self.store.alert_messages.prune(
                delivered_before=self._cutoff(self._keep.message_days)
            ),
            "answers": lambda: self.store.answers.prune(self._cutoff(self._keep.answer_days)),
            "completions": lambda: self.store.completions_cache.prune(
                unused_since=self._cutoff(self._keep.cache_days)
            ),
        }
        running = self.store.heartbeats.find_recent(self.settings.dead_after_seconds)
        if all(beat.job == JOB for beat in running):  # another run may be reading files
            parts |= {
                "embeddings": self._delete_embeddings,
                "checkpoints": self._delete_checkpoints,
                "retraining sets": self._delete_retraining_sets,
                "model files": self._delete_model_files,
            }
        return {kind: n for kind, delete in parts.items() if (n := delete())}

    @property
    def _keep(self) -> RetentionParams:
        return self.settings.retention

    def _cutoff(self, days: int) -> datetime:
        return self.now - timedelta(days=days)

    def _unfinished_decisions(self) -> list[TriggerDecision]:
        return [*self.store.training_jobs.pending(), *self.store.training_jobs.submitted()]

    def _delete_runs(self) -> int:
        """Ended runs with their events and logs, but those of decisions and of unfinished
        completions.
        """
        unfinished = {str(decision.decision_id) for decision in self._unfinished_decisions()}
        origins = {decision.run_id for decision in self.store.decisions.all()}
        origins |= {run.origin for run in self.store.generation.list_runs() if run.ended_at is None}
        old_runs = dg.RunsFilter(
            created_before=self._cutoff(self._keep.run_days), statuses=ENDED_STATUSES
        )
        n = 0
        for run in self.instance.get_runs(old_runs, limit=RUNS_AT_ONCE, ascending=True):
            if run.run_id not in origins and run.tags.get(DECISION_TAG) not in unfinished:
                self.instance.delete_run(run.run_id)
                self._delete_files_of_run(run.run_id)
                n += 1
        return n

    def _delete_files_of_run(self, run_id: str) -> None:
        """The SQLite file of its events, which Dagster empties and leaves, and the folder of its
        logs.
        """
        # here: it imports Alembic, which takes long
        from dagster._core.storage.event_log import SqliteEventLogStorage

        events = self.instance.event_log_storage
        if isinstance(events, SqliteEventLogStorage):
            for end in ("", "-wal", "-shm"):
                Path(f"{events.path_for_shard(run_id)}{end}").unlink(missing_ok=True)
        logs = self.settings.home / "dagster" / "storage" / run_id
        shutil.rmtree(logs, ignore_errors=True)

    def _delete_embeddings(self) -> int:
        folder, before = self.settings.cache / "embeddings", self._cutoff(self._keep.cache_days)
        old = [path for path in _find_old(folder, before) if path.suffix == ".emb"]
        for path in old:
            path.unlink(missing_ok=True)
        return len(old)

    def _delete_checkpoints(self) -> int:
        """Checkpoints and outcomes of trainings: what was registered has its files in MLflow."""
        before = self._cutoff(self._keep.checkpoint_days)
        candidates = self.settings.models / "candidates"
        old = [path for path in _find_old(candidates, before) if path.is_dir()]
        for path in old:
            shutil.rmtree(path)
        return len(old)

    def _delete_retraining_sets(self) -> int:
        """Kept versions that no policy with files was trained on."""
        files, before = Artefacts(self.settings.frames), self._cutoff(self._keep.checkpoint_days)
        trained_on = {
            stored.data_hash
            for stored in self.registry.list_models("policy")
            if stored.removed_at is None
        }
        folder = files.base / "retraining_set"
        old = [
            name
            for name, written_at in list_written(folder).items()
            if name.removesuffix(".parquet") not in trained_on and written_at < before
        ]
        for name in old:
            (folder / name).unlink(missing_ok=True)
        return len(old)

    def _delete_model_files(self) -> int:
        """Those of versions that never served and are not the newest."""
        n = 0
        for kind in KINDS:
            versions = self.registry.list_models(kind)
            needed = self._find_needed(self.registry.model_name(kind), versions)
            for stored in removable_versions(
                versions, needed=needed, n_latest=self._keep.model_versions
            ):
                n += remove_files(
                    self.registry,
                    stored,
                    self.settings.cache,
                    self.now,
                    is_needed=partial(self._is_needed, stored, versions),
                )
        return n

    def _find_needed(self, name: str, versions: list[ListedModel]) -> set[str]:
        history = self.store.promotions.history(name)
        return needed_versions(versions, history, self._unfinished_decisions())

    def _is_needed(self, version: ModelVersion, versions: list[ListedModel]) -> bool:
        return version.label in self._find_needed(version.name, versions)


def _find_old(folder: Path, before: datetime) -> list[Path]:
    """Files and folders of `folder` in which nothing was written since."""
    return [
        path
        for path in sorted(folder.glob("*"))
        if max(file.stat().st_mtime for file in (path, *path.rglob("*"))) < before.timestamp()
    ]


@dg.op(description="Deletes what `retention:` no longer keeps.")
def keep_house(
    context: dg.OpExecutionContext,
    settings: dg.ResourceParam[Settings],
    store: dg.ResourceParam[Store],
    registry: dg.ResourceParam[Registry],
) -> None:
    now = datetime.now(UTC)
    deleted = Retention(settings, store, registry, context.instance, now).delete()
    context.log.info(
        f"Deleted {', '.join(f'{n} {kind}' for kind, n in deleted.items()) or 'nothing'}."
    )


@dg.job(
    name=JOB,
    description="Deletes what is no longer kept.",
    executor_def=light_executor,
)
def housekeeping() -> None:
    keep_house()


def housekeeping_schedule(
    loop: LoopSettings, status: dg.DefaultScheduleStatus
) -> dg.ScheduleDefinition:
    return dg.ScheduleDefinition(
        name="housekeeping_nightly",
        job=housekeeping,
        cron_schedule=loop.schedules.cron("housekeeping"),
        execution_timezone="UTC",
        default_status=status,
    )

"""Deletes what the settings `keep_…` no longer keep, for job `housekeeping`."""

import re
import shutil
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from functools import partial
from pathlib import Path

import dagster as dg
from dagster._core.scheduler.instigation import TickStatus
from dagster._core.storage.event_log import SqliteEventLogStorage
from upath import UPath

from assets.retraining_decision import DECISION_TAG
from rlhf_pipeline.artefacts import Artefacts
from rlhf_pipeline.config import Settings
from rlhf_pipeline.object_stores import modified_at
from rlhf_pipeline.protocols import Progress, ignore_progress
from rlhf_pipeline.records import ModelVersion, TriggerDecision
from rlhf_pipeline.registry import (
    KINDS,
    Registry,
    StoredVersion,
    remove_files,
    stored_versions,
    version_size,
)
from rlhf_pipeline.retention import (
    DatedFile,
    DeletableItem,
    needed_versions,
    old_files,
    removable_versions,
)
from rlhf_pipeline.reward_model.embedding_cache import CUT
from rlhf_pipeline.store import Store

RUNS_AT_ONCE = 2000  # oldest first; what is left goes the next time
ENDED_STATUSES = [
    dg.DagsterRunStatus.SUCCESS,
    dg.DagsterRunStatus.FAILURE,
    dg.DagsterRunStatus.CANCELED,
]
TRAINING_FOLDERS = ("candidates", "reward_models")  # folders of checkpoints below `Settings.models`
OWN_JOB = "housekeeping"
IDS_AT_ONCE = 500
RUN_ID = re.compile(r"[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}")


@dataclass(frozen=True)
class Removal:
    """An item and how it is deleted; `act` returns False where it was kept after all."""

    item: DeletableItem
    act: Callable[[], object]


@dataclass(frozen=True)
class Retention:
    """Everything of one home that settings give a time to live. `now` is handed in, so that a dry
    run and the run after it agree.
    """

    settings: Settings
    store: Store
    registry: Registry
    instance: dg.DagsterInstance
    now: datetime

    def retain(
        self, *, dry_run: bool = False, progress: Progress = ignore_progress
    ) -> list[DeletableItem]:
        """Delete what is due, or only list it. May be repeated at any time, whatever ended it
        before.
        """
        removals = [
            *self._find_runs(),
            *self._find_orphaned_files(),
            *self._find_ticks(),
            *self._find_messages(),
            *self._find_completions(),
        ]
        if not self._running_jobs():  # a run under way may be reading files that nobody else needs
            removals += [
                *self._find_reports(),
                *self._find_embeddings(),
                *self._find_trainings(),
                *self._find_retraining_sets(),
                *self._find_model_files(),
            ]
        if dry_run:
            return [removal.item for removal in removals]
        removed = []
        for n, removal in enumerate(removals):
            if removal.act() is not False:
                removed.append(removal.item)
            progress(n + 1, len(removals), removal.item.kind)
        return removed

    def _cutoff(self, days: int) -> datetime:
        return self.now - timedelta(days=days)

    def _running_jobs(self) -> list[str]:
        return [
            beat.job
            for beat in self.store.heartbeats.find_recent(self.settings.dead_after_seconds)
            if beat.job != OWN_JOB
        ]

    def _find_runs(self) -> Iterator[Removal]:
        unfinished = {str(decision.decision_id) for decision in self._unfinished_decisions()}
        decided = {decision.run_id for decision in self.store.decisions.all()}
        at_work = {run.origin for run in self.store.generation.list_runs() if run.ended_at is None}
        wanted = dg.RunsFilter(
            created_before=self._cutoff(self.settings.keep_days), statuses=ENDED_STATUSES
        )
        for record in self.instance.get_run_records(wanted, limit=RUNS_AT_ONCE, ascending=True):
            run = record.dagster_run
            if run.run_id not in decided | at_work and run.tags.get(DECISION_TAG) not in unfinished:
                name = f"{run.job_name} {run.run_id[:8]} of {record.create_timestamp:%Y-%m-%d}"
                item = DeletableItem(
                    kind="runs", name=name, n_bytes=_n_bytes(*self._files_of_run(run.run_id))
                )
                yield Removal(item, partial(self._delete_run, run.run_id))

    def _unfinished_decisions(self) -> list[TriggerDecision]:
        return [*self.store.decisions.pending_fires(), *self.store.decisions.submitted_fires()]

    def _files_of_run(self, run_id: str) -> list[Path]:
        """The SQLite file of its events, which Dagster empties and leaves, and the folder of its
        logs.
        """
        events = self.instance.event_log_storage
        shard = (
            Path(events.path_for_shard(run_id))
            if isinstance(events, SqliteEventLogStorage)
            else None
        )
        databases = [shard, Path(f"{shard}-wal"), Path(f"{shard}-shm")] if shard is not None else []
        return [
            path
            for path in (*databases, self.settings.home / "dagster" / "storage" / run_id)
            if path.exists()
        ]

    def _delete_run(self, run_id: str) -> None:
        self.instance.delete_run(run_id)
        self._delete_files_of_run(run_id)

    def _delete_files_of_run(self, run_id: str) -> None:
        for path in self._files_of_run(run_id):
            _delete(path)

    def _find_orphaned_files(self) -> Iterator[Removal]:
        """Files of runs whose record is gone: deleted in Dagster's UI, or just before this was
        killed.
        """
        events, logs = self.instance.event_log_storage, self.settings.home / "dagster" / "storage"
        shards = (
            Path(events.path_for_shard("")).parent.glob("*.db")
            if isinstance(events, SqliteEventLogStorage)
            else ()
        )
        old = old_files(
            [_date_file(path) for path in (*shards, *logs.glob("*"))],
            before=self._cutoff(self.settings.keep_days),
        )
        found = {Path(file.path).stem for file in old}
        known = {
            record.dagster_run.run_id
            for record in self._read_records(sorted(filter(RUN_ID.fullmatch, found)))
        }
        for run_id in sorted(filter(RUN_ID.fullmatch, found - known)):
            item = DeletableItem(
                kind="runs",
                name=f"files of the deleted run {run_id[:8]}",
                n_bytes=_n_bytes(*self._files_of_run(run_id)),
            )
            yield Removal(item, partial(self._delete_files_of_run, run_id))

    def _read_records(self, run_ids: list[str]) -> Iterator[dg.RunRecord]:
        for start in range(0, len(run_ids), IDS_AT_ONCE):
            yield from self.instance.get_run_records(
                dg.RunsFilter(run_ids=run_ids[start : start + IDS_AT_ONCE])
            )

    def _find_ticks(self) -> Iterator[Removal]:
        kept = (
            ("skipped", [TickStatus.SKIPPED], self.settings.keep_skipped_tick_days),
            ("ended", [TickStatus.SUCCESS, TickStatus.FAILURE], self.settings.keep_tick_days),
        )
        states = (
            self.instance.all_instigator_state()
            if self.instance.schedule_storage is not None
            else ()
        )
        for state in states:
            for what, statuses, days in kept:
                before = self._cutoff(days).timestamp()
                of = (state.instigator_origin_id, state.selector_id)
                n = len(self.instance.get_ticks(*of, before=before, statuses=statuses))
                if n:
                    purge = partial(self.instance.purge_ticks, *of, before, statuses)
                    yield Removal(
                        DeletableItem(kind="ticks", name=f"{state.instigator_name}, {what}", n=n),
                        purge,
                    )

    def _find_messages(self) -> Iterator[Removal]:
        prune = partial(
            self.store.alert_messages.prune,
            delivered_before=self._cutoff(self.settings.keep_message_days),
        )
        if n := prune(dry_run=True):
            yield Removal(DeletableItem(kind="alert messages", name="delivered", n=n), prune)

    def _find_completions(self) -> Iterator[Removal]:
        prune = partial(
            self.store.completions_cache.prune,
            unused_since=self._cutoff(self.settings.keep_cache_days),
        )
        n, n_characters = prune(dry_run=True)
        if n:
            yield Removal(
                DeletableItem(kind="completions", name="cached, unused", n=n, n_bytes=n_characters),
                prune,
            )

    def _find_reports(self) -> Iterator[Removal]:
        before = self._cutoff(self.settings.keep_report_days)
        files = Artefacts(self.settings.frames)
        for path in sorted(files.report_paths(), key=str):
            at = modified_at(path)
            if at is not None and at < before:
                item = DeletableItem(kind="reports", name=path.name, n_bytes=path.stat().st_size)
                yield Removal(item, partial(self._delete_recorded_file, files.name(path), path))

    def _delete_recorded_file(self, name: str, path: UPath) -> None:
        """Its hash goes first: a file that `check` does not know may stand there, one that
        it knows may not be missing.
        """
        self.store.file_hashes.forget([name])
        path.unlink(missing_ok=True)

    def _find_embeddings(self) -> Iterator[Removal]:
        files = [_date_file(path) for path in (self.settings.cache / "embeddings").glob("*.emb")]
        for file in old_files(files, before=self._cutoff(self.settings.keep_cache_days)):
            item = DeletableItem(kind="embeddings", name=Path(file.path).name, n_bytes=file.n_bytes)
            yield Removal(item, partial(_delete_embeddings, Path(file.path)))

    def _find_trainings(self) -> Iterator[Removal]:
        """Checkpoints and outcomes of trainings: what was registered has its files in MLflow."""
        folders = [
            path
            for name in TRAINING_FOLDERS
            for path in (self.settings.models / name).glob("*")
            if path.is_dir()
        ]
        for folder in old_files(
            [_date_file(path) for path in folders], before=self._cutoff(self.settings.keep_days)
        ):
            path = Path(folder.path)
            item = DeletableItem(
                kind="training files",
                name=f"{path.parent.name}/{path.name}",
                n_bytes=folder.n_bytes,
            )
            yield Removal(item, partial(_delete, path))

    def _find_retraining_sets(self) -> Iterator[Removal]:
        """Kept versions that no policy with files was trained on."""
        files, before = Artefacts(self.settings.frames), self._cutoff(self.settings.keep_days)
        trained_on = {
            stored.version.data_hash
            for stored in stored_versions(self.registry, "policy")
            if stored.removed_at is None
        }
        for version in files.versions("retraining_set"):
            path = files.path("retraining_set", version)
            at = modified_at(path)
            if version not in trained_on and at is not None and at < before:
                item = DeletableItem(
                    kind="retraining sets", name=version[:12], n_bytes=path.stat().st_size
                )
                yield Removal(item, partial(self._delete_recorded_file, files.name(path), path))

    def _find_model_files(self) -> Iterator[Removal]:
        for kind in KINDS:
            versions = stored_versions(self.registry, kind)
            promotions = self.store.promotions.history(self.registry.model_name(kind))
            needed = needed_versions(versions, promotions, self._unfinished_decisions())
            for stored in removable_versions(
                versions, needed=needed, n_latest=self.settings.keep_model_versions
            ):
                version = stored.version
                item = DeletableItem(
                    kind="model files",
                    name=version.label,
                    n_bytes=version_size(self.registry, version),
                )
                is_needed = partial(self._is_needed, version, versions)
                yield Removal(
                    item,
                    partial(
                        remove_files,
                        self.registry,
                        version,
                        self.settings.cache,
                        self.now,
                        is_needed=is_needed,
                    ),
                )

    def _is_needed(self, version: ModelVersion, versions: list[StoredVersion]) -> bool:
        return version.label in needed_versions(
            versions, self.store.promotions.history(version.name), self._unfinished_decisions()
        )


def _date_file(path: Path) -> DatedFile:
    """A file, or a folder as of the newest file in it."""
    files = [path, *path.rglob("*")]
    newest = max(file.stat().st_mtime for file in files)
    return DatedFile(
        path=str(path), written_at=datetime.fromtimestamp(newest, UTC), n_bytes=_n_bytes(path)
    )


def _n_bytes(*paths: Path) -> int:
    return sum(
        file.stat().st_size for path in paths for file in (path, *path.rglob("*")) if file.is_file()
    )


def _delete(path: Path) -> None:
    if path.is_dir():
        shutil.rmtree(path)
    else:
        path.unlink(missing_ok=True)


def _delete_embeddings(path: Path) -> None:
    path.unlink(missing_ok=True)
    # second: which texts were cut matters as long as there are embeddings of them
    path.with_suffix(CUT).unlink(missing_ok=True)

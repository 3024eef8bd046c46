"""The IO manager of all assets: frames and records as files."""

import json
import multiprocessing
import os
import signal
import threading

import dagster as dg
import pandas as pd

from rlhf_pipeline.core.artefacts import RECORDS, Artefacts
from rlhf_pipeline.core.config import Settings
from rlhf_pipeline.core.errors import ArtefactError, translate_memory_errors
from rlhf_pipeline.core.records import Record
from rlhf_pipeline.improve.loop_settings import LoopSettings
from rlhf_pipeline.store.heartbeats import is_beating_here

# on each run: the loop settings that the file set when it began, as JSON
SETTINGS_TAG = "rlhf/loop_settings"


class FrameIOManager(dg.IOManager):
    """Writes one file per day from a frame with a `day` column; reads ranges as one dataset, in
    which days never materialised are empty.
    """

    def __init__(self, files: Artefacts) -> None:
        self._files = files

    def handle_output(self, context: dg.OutputContext, obj: pd.DataFrame | Record | None) -> None:
        if obj is None:
            return
        with translate_memory_errors(f"Writing {context.asset_key.to_user_string()}"):
            self._write_output(context, obj)

    def load_input(self, context: dg.InputContext) -> pd.DataFrame | Record:
        with translate_memory_errors(f"Reading {context.asset_key.to_user_string()}"):
            return self._read_input(context)

    def _write_output(self, context: dg.OutputContext, obj: pd.DataFrame | Record) -> None:
        stage, files = context.asset_key.to_user_string(), self._files
        if isinstance(obj, Record):
            context.add_output_metadata(
                {"path": dg.MetadataValue.path(str(files.write_record(stage, obj)))}
            )
        elif context.has_asset_partitions:
            self._write_days(files, stage, obj, list(context.asset_partition_keys))
            context.add_output_metadata({"path": dg.MetadataValue.path(str(files.base / stage))})
        else:
            context.add_output_metadata(
                {"path": dg.MetadataValue.path(str(files.write_frame(stage, obj)))}
            )

    def _read_input(self, context: dg.InputContext) -> pd.DataFrame | Record:
        stage, files = context.asset_key.to_user_string(), self._files
        if stage in RECORDS:
            return files.read_record(stage, RECORDS[stage])
        if not context.has_asset_partitions:
            return files.read_frame(stage)
        days = list(context.asset_partition_keys)
        if len(days) == 1:
            return files.read_frame(stage, days[0])
        # A materialised day without a file is an error, not an empty day.
        days_made = context.step_context.instance.get_materialized_partitions(context.asset_key)
        return files.read_days(stage, days, expected=frozenset(days_made))

    def _write_days(
        self, files: Artefacts, stage: str, frame: pd.DataFrame, days: list[str]
    ) -> None:
        stray = sorted(set(frame["day"].unique()) - set(days))
        if stray:
            raise ArtefactError(
                f"{stage}: rows of {', '.join(stray)} in a run for {days[0]} … {days[-1]}. Nothing "
                "was written."
            )
        for day in days:
            files.write_frame(stage, frame[frame["day"] == day], day)


def frame_io_manager(settings: Settings) -> dg.IOManagerDefinition:
    """The IO manager. Not configurable: the UI shows configuration, and URLs hold passwords."""

    @dg.io_manager(description="Frames by day as Parquet, records as JSON.")
    def io_manager(context: dg.InitResourceContext) -> FrameIOManager:
        if context.dagster_run is not None:
            end_with_run(context.dagster_run.run_id)
            _tag_run(context.instance, context.dagster_run, settings)
        return FrameIOManager(Artefacts(settings.frames))

    return io_manager


def _tag_run(instance: dg.DagsterInstance | None, run: dg.DagsterRun, settings: Settings) -> None:
    """Record on the run what the file sets when it begins."""
    if instance is None or SETTINGS_TAG in run.tags:
        return
    parts = LoopSettings.read(settings).given
    instance.add_run_tags(run.run_id, {SETTINGS_TAG: json.dumps(parts, sort_keys=True)})


_watched_runs: set[str] = set()


def is_step_process(run_id: str) -> bool:
    """Whether this process executes a step of a run that another process owns."""
    return multiprocessing.parent_process() is not None and not is_beating_here(run_id)


def end_with_run(run_id: str) -> None:
    """Kill this step process as soon as its run's process ends; does nothing in the run's own
    process.
    """
    if run_id in _watched_runs or not is_step_process(run_id):
        return
    _watched_runs.add(run_id)
    threading.Thread(target=_end_with_parent, daemon=True, name=f"watch-{run_id[:8]}").start()


def _end_with_parent() -> None:
    parent = multiprocessing.parent_process()
    assert parent is not None  # checked before the thread is started
    parent.join()
    # no event is logged: the run has already ended
    os.kill(os.getpid(), signal.SIGKILL)

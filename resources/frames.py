"""The one IO manager: assets' frames and records as files. Knows partitions and the event log; paths and formats are the library's."""

import dagster as dg
import pandas as pd

from resources.orphans import end_with_run
from rlhf_pipeline.artefacts import RECORDS, Artefacts
from rlhf_pipeline.errors import ArtefactError
from rlhf_pipeline.memory import memory_named
from rlhf_pipeline.records import Record


class FrameIOManager(dg.ConfigurableIOManager):
    """Writes one file per day from a frame with a `day` column; reads ranges as one dataset with never-made days empty."""

    base: str

    def setup_for_execution(self, context: dg.InitResourceContext) -> None:
        if context.dagster_run is not None:
            end_with_run(context.dagster_run.run_id)

    def handle_output(self, context: dg.OutputContext, obj: pd.DataFrame | Record | None) -> None:
        if obj is None:
            return
        with memory_named(f"Writing {context.asset_key.to_user_string()}"):
            self._write(context, obj)

    def load_input(self, context: dg.InputContext) -> pd.DataFrame | Record:
        with memory_named(f"Reading {context.asset_key.to_user_string()}"):
            return self._read(context)

    def _write(self, context: dg.OutputContext, obj: pd.DataFrame | Record) -> None:
        stage, files = context.asset_key.to_user_string(), Artefacts(self.base)
        if isinstance(obj, Record):
            context.add_output_metadata({"path": dg.MetadataValue.path(str(files.write_record(stage, obj)))})
        elif context.has_asset_partitions:
            self._write_days(files, stage, obj, list(context.asset_partition_keys))
            context.add_output_metadata({"path": dg.MetadataValue.path(str(files.base / stage))})
        else:
            context.add_output_metadata({"path": dg.MetadataValue.path(str(files.write_frame(stage, obj)))})

    def _read(self, context: dg.InputContext) -> pd.DataFrame | Record:
        stage, files = context.asset_key.to_user_string(), Artefacts(self.base)
        if stage in RECORDS:
            return files.read_record(stage, RECORDS[stage])
        if not context.has_asset_partitions:
            return files.read_frame(stage)
        days = list(context.asset_partition_keys)
        if len(days) == 1:
            return files.read_frame(stage, days[0])
        # A day that was made and has lost its file is a loss to report, not an empty day.
        made = context.step_context.instance.get_materialized_partitions(context.asset_key)
        return files.read_days(stage, days, expected=frozenset(made))

    def _write_days(self, files: Artefacts, stage: str, frame: pd.DataFrame, days: list[str]) -> None:
        stray = sorted(set(frame["day"].unique()) - set(days))
        if stray:
            raise ArtefactError(f"{stage}: rows of {', '.join(stray)} in a run for {days[0]} … {days[-1]}. Nothing was written.")
        for day in days:
            files.write_frame(stage, frame[frame["day"] == day], day)

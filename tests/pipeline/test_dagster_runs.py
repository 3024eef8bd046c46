"""Runs, schedules and sensors read from Dagster's tables are those that Dagster reports."""

import shutil
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path

import dagster as dg
import pytest
from dagster._core.remote_origin import (
    ManagedGrpcPythonEnvCodeLocationOrigin,
    RemoteRepositoryOrigin,
)
from dagster._core.types.loadable_target_origin import LoadableTargetOrigin

from rlhf_pipeline.core.config import Settings
from rlhf_pipeline.store.dagster_runs import DagsterRuns
from tests.project import QUIET, ROOT

REPOSITORY = RemoteRepositoryOrigin(
    ManagedGrpcPythonEnvCodeLocationOrigin(LoadableTargetOrigin(python_file="d.py"), "here"), "r"
)


@pytest.fixture
def settings(tmp_path: Path) -> Settings:
    (tmp_path / "dagster").mkdir()
    shutil.copy(ROOT / "dagster_home" / "dagster.yaml", tmp_path / "dagster")
    return Settings(home=tmp_path, annotators="simulated")


@pytest.fixture
def instance(settings: Settings) -> Iterator[dg.DagsterInstance]:
    with dg.DagsterInstance.from_config(str(settings.home / "dagster")) as opened:
        yield opened


@dg.op(config_schema={"fails": bool})
def step(context: dg.OpExecutionContext) -> None:
    if context.op_config["fails"]:
        raise dg.Failure("no votes")


@dg.job
def collection() -> None:
    step()


def run(instance: dg.DagsterInstance, *, fails: bool = False, **tags: str) -> None:
    collection.execute_in_process(
        instance=instance,
        raise_on_error=False,
        run_config={"ops": {"step": {"config": {"fails": fails}}}, "loggers": QUIET},
        tags={f"dagster/{key}": value for key, value in tags.items()},
    )


def test_runs_are_those_of_the_instance(settings: Settings, instance: dg.DagsterInstance) -> None:
    run(instance, schedule_name="collection_morning", partition="2026-01-02")
    days = {"asset_partition_range_start": "2026-01-03", "asset_partition_range_end": "2026-01-05"}
    run(instance, fails=True, sensor_name="votes", **days)
    run(instance)
    runs = DagsterRuns(settings)
    known = {record.dagster_run.run_id: record for record in instance.get_run_records()}
    page = runs.page(limit=10)
    assert [(each.run_id, each.status) for each in page] == [
        (run_id, record.dagster_run.status.value) for run_id, record in known.items()
    ]
    for each in page:
        record = known[each.run_id]
        assert each.created_at == record.create_timestamp.astimezone(UTC)
        assert each.started_at == datetime.fromtimestamp(record.start_time, UTC)
        assert each.ended_at == datetime.fromtimestamp(record.end_time, UTC)
    assert [(each.day, each.started_by) for each in page] == [
        (None, None),
        ("2026-01-03 to 2026-01-05", "votes"),
        ("2026-01-02", "collection_morning"),
    ]
    assert runs.list_jobs() == ["collection"]
    assert runs.page(limit=1, before=page[0].number) == page[1:2]
    assert runs.page(limit=9, job="feedback") == []
    assert runs.page(limit=9, statuses=["FAILURE"]) == page[1:2]

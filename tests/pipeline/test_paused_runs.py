"""A run that waits hours for its provider: paused, shown, and requested again by the sensor."""

from collections.abc import Callable, Iterator
from datetime import timedelta
from pathlib import Path
from typing import Any

import dagster as dg
import pandas as pd
import pytest
from pydantic import SecretStr

from rlhf_pipeline.application.assets.completions import completions
from rlhf_pipeline.application.jobs.collection import collection
from rlhf_pipeline.application.sensors.paused_runs import paused_runs_sensor
from rlhf_pipeline.application.sensors.runs import RANGE_END_TAG, RANGE_START_TAG, RUN_KEY_TAG
from rlhf_pipeline.core.config import Settings
from rlhf_pipeline.core.records import utc_now
from rlhf_pipeline.learn.champions import Champions
from rlhf_pipeline.registry import Registry
from rlhf_pipeline.store import Store
from tests.providers.generation_runs import prompts_of
from tests.providers.stub_provider import Fault, StubProvider

DAY = "2026-01-02"
HOURS = 2
CONFIG = {"ops": {"completions": {"config": {"k": 2, "concurrency": 1}}}}


@dg.asset(
    name="prompts",
    partitions_def=completions.partitions_def,
    backfill_policy=dg.BackfillPolicy.single_run(),
)
def prompts(context: dg.AssetExecutionContext) -> pd.DataFrame:
    days = [
        prompts_of(5, f"On {day}, {{}}?").assign(
            day=day, prompt_id=lambda of: of["day"] + of["prompt_id"]
        )
        for day in context.partition_keys
    ]
    return pd.concat(days, ignore_index=True)


class Days(dg.IOManager):
    """Frames in memory, a range of days as one, like that of the pipeline."""

    def __init__(self) -> None:
        self.frames: dict[str, pd.DataFrame] = {}

    def handle_output(self, context: dg.OutputContext, obj: pd.DataFrame) -> None:
        self.frames |= {
            f"{context.asset_key}{day}": obj[obj["day"] == day]
            for day in context.asset_partition_keys
        }

    def load_input(self, context: dg.InputContext) -> pd.DataFrame:
        frames = [self.frames[f"{context.asset_key}{day}"] for day in context.asset_partition_keys]
        return pd.concat(frames, ignore_index=True)


@pytest.fixture
def store(tmp_path: Path) -> Iterator[Store]:
    with Store.open(f"sqlite:///{tmp_path / 'store.db'}") as store:
        store.migrate()
        yield store


@pytest.fixture
def instance() -> Iterator[dg.DagsterInstance]:
    with dg.DagsterInstance.ephemeral() as instance:
        yield instance


@pytest.fixture
def collect(
    store: Store, instance: dg.DagsterInstance, tmp_path: Path
) -> Callable[..., dg.ExecuteInProcessResult]:
    registry = Registry(
        f"sqlite:///{tmp_path / 'mlflow.db'}", tmp_path / "artifacts", "demo", ui="http://localhost"
    )

    frames = Days()

    def run(
        stub: StubProvider,
        config: dict[str, Any],
        first: str = DAY,
        last: str = DAY,
        run_key: str | None = None,
    ) -> dg.ExecuteInProcessResult:
        settings = Settings(
            home=tmp_path,
            completion_backend="openai_compatible",
            base_url=stub.base_url,
            api_key=SecretStr("k"),
            api_model="stub-model",
        )
        resources = {
            "settings": settings,
            "champions": Champions(store, registry, tmp_path / "cache"),
            "store": store,
            "registry": registry,
            "progress": lambda stage: lambda *progress: None,
            "io_manager": frames,
        }
        tags = {} if run_key is None else {RUN_KEY_TAG: run_key}
        return dg.materialize(
            [prompts, completions],
            partition_key=first if first == last else None,
            resources=resources,
            run_config=config,
            instance=instance,
            raise_on_error=False,
            tags=tags if first == last else tags | {RANGE_START_TAG: first, RANGE_END_TAG: last},
        )

    return run


def tick(store: Store, instance: dg.DagsterInstance) -> dg.SensorResult:
    from rlhf_pipeline.application.definitions import defs

    sensor = paused_runs_sensor(Settings(), dg.DefaultSensorStatus.RUNNING)
    with dg.build_sensor_context(
        instance=instance, resources={"store": store}, repository_def=defs.get_repository_def()
    ) as context:
        return sensor.evaluate_tick(context)


def test_paused_run_is_requested_again_for_missing_rows(
    store: Store, instance: dg.DagsterInstance, collect: Callable[..., dg.ExecuteInProcessResult]
) -> None:
    assert tick(store, instance).skip_message == "no run is paused"
    wait = Fault(
        kind="status", status=429, retry_after_ms=HOURS * 3_600_000, retry_after_as="seconds"
    )
    with StubProvider(faults=[None, None, wait]) as stub:
        first = collect(stub, CONFIG)
        assert not first.success
        [failure] = [event for event in first.all_events if event.is_step_failure]
        error = failure.step_failure_data.error.to_string()
        assert "8 of 10 completions wait until" in error
        [run] = store.generation.paused_runs()
        assert run.origin == first.run_id
        waiting = tick(store, instance)
        assert waiting.run_requests == []
        assert "1 runs are paused" in (waiting.skip_message or "")

        # two hours later
        store.generation.pause(run.run_id, utc_now() - timedelta(seconds=1), run.pause_reason or "")
        [again] = tick(store, instance).run_requests or []
        assert (again.job_name, again.partition_key, again.run_config) == (
            collection.name,
            DAY,
            CONFIG,
        )
        left = [dg.AssetKey("completions"), dg.AssetKey("comparisons")]
        assert again.asset_selection == left, (
            "the prompts are there: made again they might be others"
        )

        queued = dg.GraphDefinition(name="collection").to_job()
        instance.create_run_for_job(queued, tags={RUN_KEY_TAG: again.run_key or ""})
        assert tick(store, instance).run_requests == []
        assert [each.run_id for each in store.generation.paused_runs()] == [run.run_id], (
            "ended before the next run takes it over, its refused items would be paid again"
        )

        second = collect(stub, dict(again.run_config))
        assert second.success
        assert stub.n_calls == 2 + 1 + 8
    assert store.generation.paused_runs() == []
    assert tick(store, instance).run_requests == []


LONG = Fault(kind="status", status=429, retry_after_ms=HOURS * 3_600_000, retry_after_as="seconds")


def test_paused_range_is_requested_until_complete(
    store: Store, instance: dg.DagsterInstance, collect: Callable[..., dg.ExecuteInProcessResult]
) -> None:
    first, second, last = "2026-01-02", "2026-01-03", "2026-01-04"

    def end_wait() -> None:
        [run] = store.generation.paused_runs()
        store.generation.pause(run.run_id, utc_now() - timedelta(seconds=1), run.pause_reason or "")

    with StubProvider(faults=[None, LONG]) as stub:
        assert not collect(stub, CONFIG, first, last).success
        end_wait()
        assert collect(stub, CONFIG, second, second).success  # somebody made one of its days anew
        [request] = tick(store, instance).run_requests or []
        assert (request.tags[RANGE_START_TAG], request.tags[RANGE_END_TAG]) == (first, last)

        stub.add_faults([LONG])  # the rest is asked for, and has to wait: as a run of its own
        assert not collect(stub, dict(request.run_config), first, last, request.run_key).success
        assert tick(store, instance).run_requests == []
        [waiting] = store.generation.paused_runs()
        assert waiting.paused_until > utc_now()
        end_wait()
        for day in (first, second, last):
            assert collect(stub, CONFIG, day, day).success
    assert tick(store, instance).run_requests == []
    assert store.generation.paused_runs() == []


def test_paused_command_run_is_not_requested(store: Store, instance: dg.DagsterInstance) -> None:
    store.generation.start("run-1", [], asset="rlhf generate", record="{}")
    store.generation.pause("run-1", utc_now() - timedelta(seconds=1), "it is full")
    assert tick(store, instance).run_requests == []

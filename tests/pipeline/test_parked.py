"""A run whose provider asked for hours of peace: parked, shown, and gone on with by the sensor once they are over."""

from collections.abc import Callable, Iterator
from datetime import timedelta
from pathlib import Path
from typing import Any

import dagster as dg
import pytest
from pydantic import SecretStr

from assets.completions import completions
from jobs.collection import collection
from rlhf_pipeline.champions import Champions
from rlhf_pipeline.config import Settings
from rlhf_pipeline.records import utc_now
from rlhf_pipeline.registry import Registry
from rlhf_pipeline.simulation.provider import Fault, StubProvider
from rlhf_pipeline.store import Store
from sensors.parked import parked_sensor
from sensors.runs import RUN_KEY_TAG
from tests.unit.completions.asking import prompts_of

DAY = "2026-01-02"
HOURS = 2
CONFIG = {"ops": {"completions": {"config": {"k": 2, "concurrency": 1}}}}


@dg.asset(name="prompts", partitions_def=completions.partitions_def)
def prompts() -> Any:
    return prompts_of(5).assign(day=DAY)


@pytest.fixture
def store(tmp_path: Path) -> Iterator[Store]:
    with Store.open(f"sqlite:///{tmp_path / 'store.db'}", organization="o", project="demo") as store:
        store.migrate()
        yield store


@pytest.fixture
def instance() -> Iterator[dg.DagsterInstance]:
    with dg.DagsterInstance.ephemeral() as instance:
        yield instance


@pytest.fixture
def collect(store: Store, instance: dg.DagsterInstance, tmp_path: Path) -> Callable[..., dg.ExecuteInProcessResult]:
    registry = Registry(f"sqlite:///{tmp_path / 'mlflow.db'}", tmp_path / "artifacts", "demo", ui="http://localhost")

    def run(stub: StubProvider, config: dict[str, Any]) -> dg.ExecuteInProcessResult:
        settings = Settings(
            home=tmp_path, completion_backend="openai_compatible", base_url=stub.base_url, api_key=SecretStr("k"), api_model="stub-model"
        )
        resources = {
            "settings": settings, "champions": Champions(store, registry, tmp_path / "cache"), "store": store, "registry": registry,
            "progress": lambda stage: lambda *told: None, "io_manager": dg.mem_io_manager,
        }  # fmt: skip
        return dg.materialize(
            [prompts, completions], partition_key=DAY, resources=resources, run_config=config, instance=instance, raise_on_error=False,
        )  # fmt: skip

    return run


def tick(store: Store, instance: dg.DagsterInstance) -> dg.SensorResult:
    from definitions import defs

    sensor = parked_sensor(Settings(), dg.DefaultSensorStatus.RUNNING)
    with dg.build_sensor_context(instance=instance, resources={"store": store}, repository_def=defs.get_repository_def()) as context:
        return sensor.evaluate_tick(context)


def test_what_was_parked_is_asked_for_again_when_its_time_is_over_and_calls_for_what_is_missing(
    store: Store, instance: dg.DagsterInstance, collect: Callable[..., dg.ExecuteInProcessResult]
) -> None:
    assert tick(store, instance).skip_message == "no run is parked"
    wait = Fault(kind="status", status=429, retry_after_ms=HOURS * 3_600_000, retry_after_as="seconds")
    with StubProvider(faults=[None, None, wait]) as stub:
        first = collect(stub, CONFIG)
        assert not first.success
        [failure] = [event for event in first.all_events if event.is_step_failure]
        shown = failure.step_failure_data.error.to_string()
        assert "8 of 10 completions wait until" in shown
        [run] = store.generation.parked()
        assert run.origin == first.run_id
        waiting = tick(store, instance)
        assert waiting.run_requests == []
        assert "1 runs are parked" in (waiting.skip_message or "")

        store.generation.park(run.run_id, utc_now() - timedelta(seconds=1), run.parked_why or "")  # two hours later
        [again] = tick(store, instance).run_requests or []
        assert (again.job_name, again.partition_key, again.run_config) == (collection.name, DAY, CONFIG)
        left = [dg.AssetKey("comparisons"), dg.AssetKey("completions")]
        assert again.asset_selection == left, "the prompts are there: made again they might be others"
        assert again.tags["rlhf/retry_of"] == first.run_id

        second = collect(stub, dict(again.run_config))
        assert second.success
        assert stub.n_calls == 2 + 1 + 8
    assert store.generation.parked() == []
    assert tick(store, instance).run_requests == []


def parked_run(store: Store, instance: dg.DagsterInstance, collect: Callable[..., dg.ExecuteInProcessResult], stub: StubProvider) -> str:
    """A run that waited for its provider and may go on; its number in the ledger."""
    assert not collect(stub, CONFIG).success
    [run] = store.generation.parked()
    store.generation.park(run.run_id, utc_now() - timedelta(seconds=1), run.parked_why or "")
    return run.run_id


LONG = Fault(kind="status", status=429, retry_after_ms=HOURS * 3_600_000, retry_after_as="seconds")


def test_a_run_that_failed_before_it_came_to_the_ledger_is_asked_for_again_later(
    store: Store, instance: dg.DagsterInstance, collect: Callable[..., dg.ExecuteInProcessResult], monkeypatch: pytest.MonkeyPatch
) -> None:
    with StubProvider(faults=[None, LONG]) as stub:
        parked_run(store, instance, collect, stub)
    [first] = tick(store, instance).run_requests or []

    @dg.job
    def fails_to_begin() -> None: ...

    def began_and_failed(key: str) -> None:
        run = instance.create_run_for_job(fails_to_begin, tags={RUN_KEY_TAG: key})
        assert tick(store, instance).run_requests == [], "it is at it"
        instance.report_run_failed(run, "the database was away")

    began_and_failed(first.run_key or "")
    assert tick(store, instance).run_requests == [], "not at once: what ended it may take a while"
    monkeypatch.setattr("sensors.parked.FIRST_WAIT", timedelta(0))
    [second] = tick(store, instance).run_requests or []
    assert second.run_key not in (None, first.run_key), "the daemon remembers a key for ever"
    assert (second.partition_key, second.run_config) == (first.partition_key, first.run_config)
    began_and_failed(second.run_key or "")
    [third] = tick(store, instance).run_requests or []
    assert third.run_key not in (first.run_key, second.run_key)


def test_completions_made_anew_under_another_configuration_are_not_overwritten(
    store: Store, instance: dg.DagsterInstance, collect: Callable[..., dg.ExecuteInProcessResult]
) -> None:
    with StubProvider(faults=[None, LONG]) as stub:
        parked_run(store, instance, collect, stub)
        assert collect(stub, {"ops": {"completions": {"config": {"k": 3, "concurrency": 1}}}}).success
    assert tick(store, instance).run_requests == []
    assert store.generation.parked() == [], "nor is it told of as waiting"


def test_a_run_of_the_command_line_is_nobodys_to_ask_for_again(store: Store, instance: dg.DagsterInstance) -> None:
    store.generation.start("run-1", [], asset="rlhf generate", record="{}")
    store.generation.park("run-1", utc_now() - timedelta(seconds=1), "it is full")
    assert tick(store, instance).run_requests == []

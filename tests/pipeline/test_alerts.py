"""The alerts sensor: what it reads of Dagster and the store, and what it makes of a change."""

from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import dagster as dg
import pytest

from rlhf_pipeline.application.driver.loop import Loop, run_loop
from rlhf_pipeline.application.driver.runner import Runner
from rlhf_pipeline.application.sensors.alerts import alerts_sensor
from rlhf_pipeline.core.api_types.filters import AlertFilter
from rlhf_pipeline.core.config import Settings
from rlhf_pipeline.store import Store
from rlhf_pipeline.watch.alerts.rounds import (
    watch_daemon,
)

RUNNING = dg.DefaultSensorStatus.RUNNING
START = datetime(2026, 3, 1, 12, tzinfo=UTC)


@dg.asset(
    check_specs=[dg.AssetCheckSpec("whole", asset="thing", blocking=True)],
    config_schema={"works": bool},
)
def thing(context):
    works = context.op_config["works"]
    yield dg.AssetCheckResult(passed=works, check_name="whole", description="too few rows")
    if not works:
        raise ValueError("nothing was made with sk-12345")
    yield dg.MaterializeResult()


WEEKLY = dg.Definitions(assets=[thing], jobs=[dg.define_asset_job("weekly", selection="*")])


class World:
    """A store, Dagster's runs and a clock."""

    def __init__(self, folder: Path, store: Store, instance: dg.DagsterInstance):
        self.settings = Settings(home=folder, sensors_running=False)
        self.store, self.instance = store, instance
        now = datetime.now(UTC)
        midnight = now.replace(hour=0, minute=0, second=0, microsecond=0)
        # not of yesterday, because failures are counted by day
        self.now, self.cursor = max(now - timedelta(hours=1), midnight), None

    def tick(self, minutes: float = 1) -> str:
        self.now += timedelta(minutes=minutes)
        with dg.build_sensor_context(
            instance=self.instance,
            cursor=self.cursor,
            resources={"store": self.store, "now": lambda: self.now},
            repository_def=WEEKLY.get_repository_def(),
        ) as context:
            data = alerts_sensor(self.settings, RUNNING).evaluate_tick(context)
        self.cursor = data.cursor
        return data.skip_message or ""

    def states(self) -> dict[str, str]:
        alerts = self.store.alerts.page(
            AlertFilter(state=["pending", "open", "acknowledged", "resolved"])
        )
        return {alert.rule: alert.state for alert in reversed(alerts)}

    def run(self, works: bool) -> None:
        """A run of a job whose only check fails unless it works."""

        WEEKLY.resolve_job_def("weekly").execute_in_process(
            instance=self.instance,
            raise_on_error=False,
            run_config={"ops": {"thing": {"config": {"works": works}}}},
        )

    def plan_run(self) -> None:
        """A run of the job that has not begun: Dagster plans its check."""
        self.instance.create_run_for_job(
            WEEKLY.resolve_job_def("weekly"),
            run_config={"ops": {"thing": {"config": {"works": True}}}},
        )


@pytest.fixture
def world(tmp_path: Path) -> Any:
    with (
        Store.open(f"sqlite:///{tmp_path / 'store.db'}") as store,
        dg.DagsterInstance.ephemeral() as instance,
    ):
        store.migrate()
        yield World(tmp_path, store, instance)


def test_a_failed_run_and_its_check_open_alerts_until_a_run_succeeds(world: World) -> None:
    world.settings = Settings(home=world.settings.home, api_key="sk-12345")
    world.run(works=False)
    world.tick()
    assert world.states() == {"run_failed": "pending", "check_failed": "open"}
    world.tick(minutes=6)
    assert world.states() == {"run_failed": "open", "check_failed": "open"}
    (alert,) = world.store.alerts.page(AlertFilter(rule="run_failed"))
    assert "nothing was made with …" in alert.title
    assert "/runs/" in (alert.link or "")
    counted = world.store.metric_points.read(["runs.failed", "checks.failed"])
    assert [(p.name, p.value) for p in counted] == [("checks.failed", 1.0), ("runs.failed", 1.0)]
    world.plan_run()
    world.tick()
    assert world.states() == {"run_failed": "open", "check_failed": "open"}, "not made yet"
    world.run(works=True)
    assert world.tick() == "2 alerts changed, 2 messages sent"
    assert world.states() == {"run_failed": "resolved", "check_failed": "resolved"}


def test_silent_daemon_opens_an_alert(world: World) -> None:
    world.tick()
    for minutes, state in ((2, None), (5, "pending"), (9, "open")):
        watch_daemon(world.store, world.settings, world.now + timedelta(minutes=minutes))
        assert world.states().get("daemon_silent") == state
    world.tick(minutes=10)
    assert world.states()["daemon_silent"] == "resolved"


@pytest.mark.parametrize(
    ("cause", "expected"), [(KeyboardInterrupt, {}), (MemoryError, {"daemon_silent": "pending"})]
)
def test_crashed_loop_opens_an_alert(
    world: World,
    monkeypatch: pytest.MonkeyPatch,
    cause: type[BaseException],
    expected: dict[str, str],
) -> None:
    def fail(_: Loop) -> int:
        raise cause

    world.tick()
    runner = Runner(
        world.settings,
        dg.Definitions(),
        world.instance,
        world.store,
        clock=lambda: world.now,
    )
    monkeypatch.setattr(Loop, "run_due", fail)
    with pytest.raises(cause):
        run_loop(runner, monitors_drift=True, once=False)
    watch_daemon(world.store, world.settings, world.now + timedelta(hours=9))
    assert world.states() == expected

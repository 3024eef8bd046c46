"""`rlhf demo`: simulated days through the real jobs and sensors, one after another."""

from datetime import UTC, date, datetime, time, timedelta
from pathlib import Path
from typing import Self

import dagster as dg

# the public API has no name for this class
from dagster._core.definitions.sensor_definition import SensorExecutionData
from pydantic import BaseModel, ConfigDict, Field, ValidationError
from rich.console import Console

from assets.partitions import DAYS
from driver.recovery import fail_dead_runs, release_run_keys
from driver.runner import Runner, StageRun, open_runner
from driver.terminal import make_progress_bars, show_progress
from rlhf_pipeline.artefacts import Artefacts
from rlhf_pipeline.config import Settings
from rlhf_pipeline.errors import ConfigurationError
from rlhf_pipeline.files import write_atomically
from rlhf_pipeline.simulation import DEMO_SCENARIO

SENSORS = ("votes", "learning", "retraining")
# The fewest that show a change within its day; with 100 the demo takes half as long again.
PROMPTS_A_DAY = 60


class DemoState(BaseModel):
    """How far the demo came. Days are ISO dates; frames cannot tell, because a daemon on the same
    home makes days of its own.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    finished: str | None = Field(default=None, description="Last day of which everything was run")
    collected: str | None = Field(
        default=None,
        description="Last day whose collection succeeded; beyond `finished`, it was cut short",
    )
    cursors: dict[str, str] = Field(
        default_factory=dict, description="By sensor; moved once everything it asked for succeeded"
    )

    @classmethod
    def read(cls, path: Path) -> Self:
        """The state in `path`, or a new one. Raises ConfigurationError for an invalid file."""
        try:
            return cls.model_validate_json(path.read_bytes()) if path.exists() else cls()
        except ValidationError as cause:
            raise ConfigurationError(
                f"{path} does not hold the state of a demo: {cause.errors()[0]['msg']}. "
                "`make demo-clean` starts over."
            ) from cause

    def write(self, path: Path) -> None:
        """Atomically, so that a kill leaves the old state or the new one."""
        write_atomically(path, self.model_dump_json(indent=2).encode())


class Demo:
    """Days of one home through `runner`; `settings.demo_state` keeps how far they came."""

    def __init__(self, runner: Runner):
        self.runner = runner
        self.settings = runner.settings
        runner.retry_command = "run the demo again"
        runner.stage_config = {"prompts": {"n": PROMPTS_A_DAY}}

    @property
    def state(self) -> DemoState:
        return DemoState.read(self.settings.demo_state)

    def run_day(self, day: str) -> None:
        """Collection, voting, then each sensor until it requests nothing; the rest of a day that
        was cut short.
        """
        # A champion that has learnt from the day must not complete and predict it again.
        if self.state.collected != day:
            self.runner.run("collection", day, partition_key=day)
            self._save(collected=day)
        self.runner.run(
            "simulated_voting",
            day,
            run_config={"ops": {"cast_simulated_votes": {"config": {"day": day}}}},
        )
        self.drain("votes", day)
        if day not in Artefacts(self.settings.frames).days("drift_report"):
            # too few votes for the sensor, or an earlier daemon took its request
            self.runner.run("feedback", day, partition_key=day)
        self.drain("learning", day)
        self.drain("retraining", day)
        self._save(finished=day)

    def resume(self) -> None:
        """End what a dead process left and retry what it left of finished days. `run_day` goes on
        with a day that was cut short.
        """
        runner = self.runner
        fail_dead_runs(
            runner.instance, runner.store, timedelta(seconds=self.settings.dead_after_seconds)
        )
        release_run_keys(runner.instance)
        last = self.state.finished
        if last is not None and last == self.state.collected:
            for sensor in SENSORS:
                self.drain(sensor, last)

    def drain(self, sensor: str, day: str) -> None:
        """Tick a sensor until it requests nothing. The cursor moves after the runs, so a process
        that is killed in between requests them again.
        """
        while True:
            data = self.tick(sensor, day)
            requests = list(data.run_requests or [])
            for request in requests:
                self.runner.run_request(request, sensor, day)
            if data.cursor is not None:
                self._save(cursors=self.state.cursors | {sensor: data.cursor})
            if not requests:
                return

    def tick(self, sensor: str, day: str) -> SensorExecutionData:
        """Evaluate a sensor at the end of a simulated day: cool-downs count simulated days."""
        self.runner.clock = lambda: tick_time(day)
        return self.runner.tick(sensor, self.state.cursors.get(sensor))

    def _save(self, **changed: object) -> None:
        self.state.model_copy(update=changed).write(self.settings.demo_state)


def tick_time(day: str) -> datetime:
    """The moment at which the sensors of a simulated day tick."""
    return datetime.combine(date.fromisoformat(day), time(23), UTC)


def next_days(state: DemoState, n_days: int) -> list[str]:
    """Days after the last finished one. Raises ConfigurationError when the history has reached
    today.
    """
    known = DAYS.get_partition_keys()
    left = [day for day in known if state.finished is None or day > state.finished][:n_days]
    if len(left) < n_days:
        raise ConfigurationError(
            f"The simulated history has only {len(left)} days left before today. `make demo-clean` "
            "starts over."
        )
    return left


def run_demo(
    settings: Settings, n_days: int, instance: dg.DagsterInstance, console: Console
) -> None:
    """Run the next `n_days` of the history, from where the last call ended or was ended."""
    days = next_days(DemoState.read(settings.demo_state), n_days)
    console.print(
        f"[bold]project {settings.project}[/] · {days[0]} … {days[-1]} · state in {settings.home}"
    )
    with make_progress_bars(console) as bars:

        def print_stage(run: StageRun) -> None:
            bars.console.print(f"  {run.stage:<17} {run.seconds:5.1f} s  {run.headline}")

        runner = open_runner(settings, instance, show_progress(bars), print_stage)
        demo = Demo(runner)
        demo.resume()
        for day in days:
            index = (date.fromisoformat(day) - settings.start_day).days
            bars.console.print(
                f"\n[bold]day {index + 1} · {day}[/] · annotators' taste: "
                f"{DEMO_SCENARIO.taste_on(index).name}"
            )
            demo.run_day(day)

"""`rlhf demo`: simulated days through the real jobs and sensors, one after another."""

from dataclasses import dataclass, field
from datetime import UTC, date, datetime, time
from pathlib import Path
from typing import Self

import dagster as dg
from pydantic import BaseModel, ConfigDict, Field, ValidationError

from rlhf_pipeline.application.assets.partitions import DAYS
from rlhf_pipeline.application.driver.runner import Runner
from rlhf_pipeline.application.sensors.runs import RUN_KEY_TAG, find_run
from rlhf_pipeline.core.artefacts import Artefacts
from rlhf_pipeline.core.errors import ConfigurationError
from rlhf_pipeline.core.files import write_atomically
from rlhf_pipeline.simulation import DEMO_SCENARIO

# The fewest that show a change within its day; with 100 the demo takes half as long again.
PROMPTS_A_DAY = 60


class DemoState(BaseModel):
    """How far the demo came. Frames cannot tell, because a daemon on the same home makes days of
    its own.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    finished: str | None = Field(default=None, description="Last day of which everything was run")

    @classmethod
    def read(cls, path: Path) -> Self:
        """The state in `path`, or a new one. Raises ConfigurationError for an invalid file."""
        try:
            return cls.model_validate_json(path.read_bytes()) if path.exists() else cls()
        except ValidationError as cause:
            raise ConfigurationError(
                f"{path} does not hold the state of a demo: {cause.errors()[0]['msg']}. "
                "Delete the folder to start over."
            ) from cause

    def write(self, path: Path) -> None:
        """Atomically, so that a kill leaves the old state or the new one."""
        write_atomically(path, self.model_dump_json(indent=2).encode())

    def next_days(self, n_days: int) -> list[str]:
        """Days after the finished one. Raises ConfigurationError when the history has reached
        today.
        """
        days = DAYS.get_partition_keys()
        unfinished = [day for day in days if self.finished is None or day > self.finished][:n_days]
        if len(unfinished) < n_days:
            raise ConfigurationError(
                f"The simulated history has only {len(unfinished)} days left before today. "
                "Delete the folder to start over."
            )
        return unfinished


@dataclass
class Demo:
    """Days of one home through `runner`; `settings.demo_state` keeps the last finished one."""

    runner: Runner
    cursors: dict[str, str] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.runner.retry_command = "run the demo again"
        self.runner.stage_config = {"prompts": {"n": PROMPTS_A_DAY}}

    def run_day(self, day: str) -> None:
        """Collection, voting, then each sensor until it requests nothing; the rest of a day that
        was cut short.
        """
        runner, settings = self.runner, self.runner.settings
        # A champion that has learnt from the day must not complete and predict it again.
        key = f"collection:{day}"
        collected = find_run(runner.instance, key)
        if collected is None or collected.status != dg.DagsterRunStatus.SUCCESS:
            runner.run("collection", day, partition_key=day, tags={RUN_KEY_TAG: key})
        voting = {"cast_simulated_votes": {"config": {"day": day}}}
        runner.run("simulated_voting", day, run_config={"ops": voting})
        self.drain("votes", day)
        if day not in Artefacts(settings.frames).days("drift_report"):
            # too few votes for the sensor, or an earlier daemon took its request
            runner.run("feedback", day, partition_key=day)
        self.drain("learning", day)
        self.drain("retraining", day)
        DemoState(finished=day).write(settings.demo_state)

    def drain(self, sensor: str, day: str) -> None:
        """Tick a sensor until it requests nothing, at the end of the simulated day: cool-downs
        count simulated days. The cursor moves after the runs, so that a run that fails is requested
        again.
        """
        self.runner.clock = lambda: tick_time(day)
        while self.runner.run_tick(sensor, day, self.cursors):
            pass

    def run_days(self, n_days: int) -> None:
        """Run the next days of the history, from where the last call ended or was ended."""
        settings, write = self.runner.settings, self.runner.write
        days = DemoState.read(settings.demo_state).next_days(n_days)
        write(
            f"[bold]project {settings.project}[/] · {days[0]} … {days[-1]} · state in "
            f"{settings.home}"
        )
        for day in days:
            index = (date.fromisoformat(day) - settings.start_day).days
            taste = DEMO_SCENARIO.taste_on(index).name
            write(f"\n[bold]day {index + 1} · {day}[/] · annotators' taste: {taste}")
            self.run_day(day)


def tick_time(day: str) -> datetime:
    """The moment at which the sensors of a simulated day tick."""
    return datetime.combine(date.fromisoformat(day), time(23), UTC)

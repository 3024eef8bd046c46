"""`rlhf replay`: takes the steps of the replay sensor in this process until no day is left."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from datetime import timedelta
from time import monotonic, sleep

import dagster as dg
from rich.console import Console

from driver.recovery import fail_dead_runs
from driver.replay_report import format_day, format_decisions, format_header
from driver.runner import Runner, StageRun, open_runner
from driver.terminal import make_progress_bars, show_progress
from rlhf_pipeline.config import Settings
from rlhf_pipeline.errors import PipelineError
from rlhf_pipeline.reports.words import format_count
from rlhf_pipeline.terminal import escape_markup
from sensors.replay_steps import Replay, ReplayWait

POLL_SECONDS = 1.0
LEARNING_STAGES = ("reward_model", "calibration")


class ReplayStopped(PipelineError):
    """A replay that cannot go on before a person fixes what it names."""


@dataclass
class ReplayDriver:
    """Replays the days that wait; `seconds` are filled on the way."""

    runner: Runner
    on_wait: Callable[[str], None]
    pause: Callable[[float], None] = sleep
    seconds: dict[str, float] = field(default_factory=dict)

    def run_days(self) -> Iterator[str]:
        """Each day once its replay is over, whichever process took its last step.

        Raises PipelineError, naming day and cause, where a step fails; the next call tries it
        again.
        """
        runner = self.runner
        runner.retry_command = "`rlhf replay`"
        fail_dead_runs(
            runner.instance, runner.store, timedelta(seconds=runner.settings.dead_after_seconds)
        )
        replay = Replay(runner.settings, runner.instance, runner.store, max_attempts=None)
        left = runner.store.replays.pending_days()
        started, reported = monotonic(), ""
        while left:
            step = replay.advance()
            now_left = runner.store.replays.pending_days()
            for day in sorted(set(left) - set(now_left)):
                self.seconds[day], started = monotonic() - started, monotonic()
                yield day
            left = now_left
            if isinstance(step, ReplayWait):
                if step.is_stuck:
                    raise ReplayStopped(step.reason)
                if step.reason != reported:
                    self.on_wait(reported := step.reason)
                self.pause(POLL_SECONDS)
            elif step is not None:
                self._run_step(replay, step, left[0])

    def _run_step(self, replay: Replay, step: dg.RunRequest, day: str) -> None:
        try:
            self.runner.run_request(step, "replay", day)
        except PipelineError:
            if not replay.is_excused(step):
                raise


def run_replay(settings: Settings, instance: dg.DagsterInstance, console: Console) -> None:
    """Replay every day that waits, oldest first, from where the last call ended or was ended."""
    started = monotonic()
    with make_progress_bars(console) as bars:
        write = bars.console.print

        def print_learning(stage: StageRun) -> None:
            if stage.stage in LEARNING_STAGES:
                write(f"  {stage.day}  {stage.stage}: {stage.headline}")

        runner = open_runner(settings, instance, show_progress(bars), print_learning)
        replay = ReplayDriver(
            runner, lambda reason: write(f"  [dim]waits: {escape_markup(reason)}[/]")
        )
        n_days = len(runner.store.replays.pending_days())
        days = format_count(n_days, "day")
        task = bars.add_task(f"replay of {days}", total=n_days, note="days")
        write(
            f"[bold]project {settings.project}[/] · {days} of imported votes · state in "
            f"{settings.home}\n{format_header()}"
        )
        for done, day in enumerate(replay.run_days(), start=1):
            for line in format_decisions(runner.store, day):
                write(escape_markup(line))
            write(format_day(settings, day, replay.seconds[day]))
            bars.update(task, completed=done)
    console.print(f"{days} replayed in {monotonic() - started:.0f} s.")

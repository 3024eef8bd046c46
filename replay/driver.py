"""Takes a replay's steps in this process until no day is left. Knows runs and waiting; what a step
is, sensors/replay.py knows.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from datetime import timedelta
from time import monotonic, sleep

import dagster as dg

from demo.in_process import InProcessRunner
from demo.recovery import fail_dead_runs
from rlhf_pipeline.errors import PipelineError
from sensors.replay import LEFT_OUT_TAG, Replay, ReplayWait

POLL_SECONDS = 1.0


class ReplayStopped(PipelineError):
    """A replay that cannot go on before somebody mends what it names."""


@dataclass
class ReplayDriver:
    """`run_days` yields each day as its replay is over, whoever took its last step."""

    runner: InProcessRunner
    told: Callable[[str], None]
    pause: Callable[[float], None] = sleep
    seconds: dict[str, float] = field(default_factory=dict)
    # comparisons that nobody could predict as on that day
    left_out: dict[str, int] = field(default_factory=dict)

    def run_days(self) -> Iterator[str]:
        """Raises PipelineError naming day and cause where a step fails; the next call tries it
        again.
        """
        runner = self.runner
        runner.to_go_on = "`rlhf replay`"
        fail_dead_runs(
            runner.instance, runner.store, timedelta(seconds=runner.settings.dead_after_seconds)
        )
        replay = Replay(runner.settings, runner.instance, runner.store, max_attempts=None)
        left = runner.store.replays.pending_days()
        started, said = monotonic(), ""
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
                if step.reason != said:
                    self.told(said := step.reason)
                self.pause(POLL_SECONDS)
            elif step is not None:
                self._run_step(replay, step, left[0])

    def _run_step(self, replay: Replay, step: dg.RunRequest, day: str) -> None:
        if LEFT_OUT_TAG in step.tags:
            self.left_out[day] = int(step.tags[LEFT_OUT_TAG])
        try:
            self.runner.run(step.job_name or "", day, **self.runner.run_arguments(step, "replay"))
        except PipelineError:
            if not replay.is_excused(step):
                raise

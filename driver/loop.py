"""`rlhf loop`: runs what schedules and sensors ask for in this process, until Ctrl-C."""

from collections.abc import Callable
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from functools import partial
from time import sleep

import dagster as dg
from dagster._utils.schedules import reverse_cron_string_iterator

from rlhf_pipeline.application.driver.runner import RunCancelled, Runner
from rlhf_pipeline.application.jobs.retraining import policy_training
from rlhf_pipeline.application.sensors.runs import SCHEDULE_NAME_TAG, started_keys
from rlhf_pipeline.core.errors import ConfigurationError, PipelineError
from rlhf_pipeline.core.terminal import escape_markup
from rlhf_pipeline.watch.alerts.rounds import keep_ticking, record_tick, send_messages

COLLECTION = "collection_morning"
ALERTS = "alerts"
SENSORS = ("votes", "replay", "learning", "retraining", "gate", "paused_runs", ALERTS)
RETRY_AFTER = timedelta(minutes=10)


@dataclass
class Loop:
    """What is due in one project, run by `runner`.

    Run keys tell what was started before, here or by a daemon, so a new process needs no state.
    """

    runner: Runner
    monitors_drift: bool = True
    cursors: dict[str, str] = field(default_factory=dict)
    # by sensor or schedule that failed, when it is tried again
    retry_at: dict[str, datetime] = field(default_factory=dict)
    # by sensor, why it requested nothing at its last tick
    waiting: dict[str, str] = field(default_factory=dict)
    invalid_settings: str = ""  # what is wrong with the settings file, while it is

    def run_due(self) -> int:
        """Run the schedules of today and whatever the sensors request; the number of runs.

        A failed run is reported and tried again after `RETRY_AFTER`; the others go on. While the
        settings file is invalid, nothing is due but the alert about it.
        """
        now = self.runner.clock()
        self.retry_at = {name: moment for name, moment in self.retry_at.items() if moment > now}
        try:
            self.runner.refresh()
            self.invalid_settings = ""
        except ConfigurationError as cause:
            self.invalid_settings = str(cause)
            return self._try(ALERTS, partial(self._tick, ALERTS))
        schedules = self.runner.repository.schedule_defs
        n = sum(
            self._try(schedule.name, partial(self._run_schedule, schedule))
            for schedule in schedules
        )
        sensors = [sensor for sensor in SENSORS if sensor != "retraining" or self.monitors_drift]
        return n + sum(self._try(sensor, partial(self._tick, sensor)) for sensor in sensors)

    def describe_waiting(self) -> str:
        """What is wrong with the settings, else `sensor: reason` of each sensor that waits for
        something people do.
        """
        return self.invalid_settings or " · ".join(
            f"{name}: {self.waiting[name]}"
            for name in ("votes", "learning", "retraining", "gate")
            if self.waiting.get(name)
        )

    def _report(self, failure: str) -> None:
        self.runner.write(f"[red]{escape_markup(failure)}[/]")

    def _run_schedule(self, schedule: dg.ScheduleDefinition) -> int:
        """Run what a schedule requests once its time of today has come. Collection is due as soon
        as the loop starts, because people wait for something to vote on.
        """
        now = self.runner.clock()
        tick = next(
            reverse_cron_string_iterator(
                now.timestamp(), str(schedule.cron_schedule), schedule.execution_timezone
            )
        ).astimezone(UTC)
        if tick.date() != now.date():
            if schedule.name != COLLECTION:
                return 0
            tick = now
        with dg.build_schedule_context(
            instance=self.runner.instance,
            scheduled_execution_time=tick,
            repository_def=self.runner.repository,
        ) as context:
            requests = schedule.evaluate_tick(context).run_requests or []
        n = 0
        for request in requests:
            key = request.run_key or f"{schedule.name}:{now.date()}"
            if not started_keys(self.runner.instance, [key]):
                with self._keep_ticking():
                    self.runner.run_scheduled(
                        request._replace(run_key=key),
                        schedule.job_name,
                        {SCHEDULE_NAME_TAG: schedule.name},
                        request.partition_key or f"{now.date()}",
                    )
                n += 1
        return n

    def _tick(self, name: str) -> int:
        """Tick a sensor once and run its requests. The cursor moves after the runs, so that a run
        that fails is requested again.
        """
        data = self.runner.tick(name, self.cursors.get(name))
        requests = data.run_requests or []
        if requests:  # a run may take hours; a message about its cause leaves before
            send_messages(self.runner.store, self.runner.settings)
        for request in requests:
            day = request.partition_key or f"{self.runner.clock().date()}"
            try:
                with self._keep_ticking():
                    self.runner.run_request(request, name, day)
            except PipelineError as cause:
                # its author orders it again or not; the trigger goes on
                if not isinstance(cause, RunCancelled) and request.job_name != policy_training.name:
                    raise
                self._report(str(cause))
        if data.cursor is not None:
            self.cursors[name] = data.cursor
        self.waiting[name] = "" if requests else data.skip_message or ""
        return len(requests)

    def _keep_ticking(self) -> AbstractContextManager[None]:
        return keep_ticking(self.runner.store, self.runner.settings.heartbeat_seconds)

    def _try(self, name: str, work: Callable[[], int]) -> int:
        if name in self.retry_at:
            return 0
        try:
            return work()
        except PipelineError as failure:
            self.retry_at[name] = self.runner.clock() + RETRY_AFTER
            self._report(f"{failure} Next try at {self.retry_at[name]:%H:%M} UTC.")
            return 0


def run_loop(
    runner: Runner,
    *,
    monitors_drift: bool,
    once: bool,
    pause: Callable[[float], None] = sleep,
) -> None:
    """Run what is due until Ctrl-C, or with `once` until nothing is."""
    settings, write = runner.settings, runner.write
    runner.retry_command = "the loop tries it"
    loop = Loop(runner, monitors_drift)
    write(
        f"[bold]project {settings.project}[/] · state in {settings.home}\n"
        "People vote with `rlhf serve` in another terminal. Ctrl-C stops the loop between or "
        "within stages; the same command goes on."
    )
    described = ""
    try:
        while True:
            if loop.run_due():
                continue
            if once:
                break
            waiting = loop.describe_waiting()
            if waiting != described:
                write(f"[dim]{datetime.now(UTC):%H:%M} waits: {escape_markup(waiting)}[/]")
                described = waiting
            pause(settings.sensor_seconds)
    except KeyboardInterrupt:
        record_tick(runner.store, runner.clock(), is_last=True)
        raise
    record_tick(runner.store, runner.clock(), is_last=True)  # a loop that crashed is missed instead
    if loop.invalid_settings:
        raise ConfigurationError(loop.invalid_settings)
    if loop.retry_at:
        raise PipelineError(f"Failed: {', '.join(loop.retry_at)}. The messages are above.")
    write("Nothing more is due.")

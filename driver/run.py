"""`rlhf run`: one job of the project in this process."""

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from time import monotonic
from typing import Any

import dagster as dg
from rich.console import Console
from rich.progress import Progress

from assets.partitions import DAYS
from assets.retraining_decision import decision_event
from driver.recovery import fail_dead_runs
from driver.runner import Runner, StageRun, open_runner
from driver.terminal import make_progress_bars, show_progress
from rlhf_pipeline.config import Settings
from rlhf_pipeline.errors import ConfigurationError
from rlhf_pipeline.terminal import escape_markup
from sensors.runs import RUN_KEY_TAG

DAILY_JOBS = ("collection", "feedback")
JOBS = (*DAILY_JOBS, "learning", "retraining")


@dataclass(frozen=True)
class JobOrder:
    """What `rlhf run` was asked for."""

    job: str
    first_day: str | None = None
    last_day: str | None = None
    stage_config: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    reason: str = ""

    def days(self) -> list[str]:
        """The days to run, today by default; one label for a job over all days.

        Raises ConfigurationError for days outside the project, or of a job that has none.
        """
        known = DAYS.get_partition_keys()
        first = self.first_day or known[-1]
        last = self.last_day or first
        if self.job not in DAILY_JOBS:
            if self.first_day or self.last_day:
                raise ConfigurationError(
                    f"{self.job} works on all days at once. Leave out --day, --from and --to."
                )
            return [known[-1]]
        days = [day for day in known if first <= day <= last]
        for day in (first, last):
            if day not in known:
                raise ConfigurationError(
                    f"{day} is not a day of this project, which has {known[0]} to {known[-1]} "
                    "(UTC). Correct --day, or set RLHF_START_DAY before `rlhf init`."
                )
        if not days:
            raise ConfigurationError(f"--from {first} is later than --to {last}. Swap them.")
        return days


def run_job(
    settings: Settings, instance: dg.DagsterInstance, order: JobOrder, console: Console
) -> None:
    """Run the job for each of its days, with one line per stage."""
    days, started = order.days(), monotonic()
    with show_runs(settings, instance, console) as (runner, bars):
        _refuse_other_stages(order, runner)
        runner.stage_config = order.stage_config
        for index, day in enumerate(days, start=1):
            if order.job in DAILY_JOBS:
                n = f" ({index} of {len(days)})" if len(days) > 1 else ""
                bars.console.print(f"[bold]{order.job}[/] of {day}{n}")
                # as the schedule asks, so that a loop or daemon does not collect the day again
                tags = {RUN_KEY_TAG: f"collection:{day}"} if order.job == "collection" else {}
                runner.run(order.job, day, partition_key=day, tags=tags)
            elif order.job == "retraining":
                retrain(runner, order.reason, day)
            else:
                runner.run(order.job, day)
    n_open = runner.store.assignments.remaining_work().n_open if order.job == "collection" else 0
    if n_open:
        console.print(f"{n_open} judgements wait for people: `rlhf serve` shows them.")
    console.print(f"{order.job}: {len(runner.history)} stages in {monotonic() - started:.0f} s")


@contextmanager
def show_runs(
    settings: Settings, instance: dg.DagsterInstance, console: Console
) -> Iterator[tuple[Runner, Progress]]:
    """A runner whose stages print one line each, below bars; runs that were killed are failed."""
    with make_progress_bars(console) as bars:

        def print_stage(run: StageRun) -> None:
            bars.console.print(
                f"  {run.stage:<18} {run.seconds:5.1f} s  {escape_markup(run.headline)}"
            )

        runner = open_runner(settings, instance, show_progress(bars), print_stage)
        fail_dead_runs(instance, runner.store, timedelta(seconds=settings.dead_after_seconds))
        yield runner, bars


def _refuse_other_stages(order: JobOrder, runner: Runner) -> None:
    stages = [node.name for node in runner.repository.get_job(order.job).nodes]
    for stage in order.stage_config:
        if stage not in stages:
            raise ConfigurationError(
                f"--set {stage}.…: {order.job} has no stage {stage}. Its stages are "
                f"{', '.join(stages)}."
            )


def retrain(runner: Runner, reason: str, day: str) -> None:
    """Store the decision, then run it as the retraining sensor requests it, so that a killed
    process leaves a decision that the next one carries out.

    Raises ConfigurationError while imported days wait for their replay.
    """
    waiting = runner.store.replays.pending_days()
    if waiting:
        raise ConfigurationError(
            f"{len(waiting)} imported days wait for their replay, and retraining waits for them. "
            "Run `rlhf replay` first."
        )
    decision = runner.store.decisions.fire_by_hand(reason, actor="rlhf run", now=datetime.now(UTC))
    runner.instance.report_runless_asset_event(decision_event(decision))
    run_pending_decisions(runner, day)


def run_pending_decisions(runner: Runner, day: str) -> None:
    """Run what the decisions that wait for a run ask for."""
    try:
        runner.run_requested("retraining", day)
    finally:
        runner.tick("retraining")  # records how the run ended

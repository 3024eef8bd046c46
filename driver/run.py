"""`rlhf run`: one job of the project in this process."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime
from time import monotonic
from typing import Any

from rlhf_pipeline.application.assets.partitions import DAYS
from rlhf_pipeline.application.driver.runner import Runner
from rlhf_pipeline.application.sensors.runs import RUN_KEY_TAG
from rlhf_pipeline.core.errors import ConfigurationError, PipelineError
from rlhf_pipeline.reports.words import format_count

DAILY_JOBS = ("collection", "feedback")


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
        all_days = DAYS.get_partition_keys()
        first = self.first_day or all_days[-1]
        last = self.last_day or first
        if self.job not in DAILY_JOBS:
            if self.first_day or self.last_day:
                raise ConfigurationError(
                    f"{self.job} works on all days at once. Leave out --day, --from and --to."
                )
            return [all_days[-1]]
        days = [day for day in all_days if first <= day <= last]
        for day in (first, last):
            if day not in all_days:
                raise ConfigurationError(
                    f"{day} is not a day of this project, which has {all_days[0]} to "
                    f"{all_days[-1]} (UTC). Correct --day, or set RLHF_START_DAY before "
                    "`rlhf init`."
                )
        if not days:
            raise ConfigurationError(f"--from {first} is later than --to {last}. Swap them.")
        return days


def run_job(runner: Runner, order: JobOrder) -> None:
    """Run the job for each of its days."""
    days, started = order.days(), monotonic()
    _refuse_other_stages(order, runner)
    runner.stage_config = order.stage_config
    for day in days:
        if order.job in DAILY_JOBS:
            # as the schedule asks, so that a loop or daemon does not collect the day again
            tags = {RUN_KEY_TAG: f"collection:{day}"} if order.job == "collection" else {}
            runner.run(order.job, day, partition_key=day, tags=tags)
        elif order.job == "retraining":
            retrain(runner, order.reason, day)
        else:
            learn(runner, order.job, day)
    n_open = runner.store.cards.remaining_work().n_open if order.job == "collection" else 0
    if n_open:
        runner.write(f"{n_open} judgements wait for people: `rlhf serve` shows them.")
    runner.write(
        f"{order.job}: {format_count(len(runner.history), 'stage')} in "
        f"{monotonic() - started:.0f} s"
    )


def learn(runner: Runner, job: str, day: str) -> None:
    """Where the job fails, name the imported days whose votes no stage has read."""
    try:
        runner.run(job, day)
    except PipelineError:
        waiting = runner.store.replays.pending_days()
        if days := waiting or runner.store.replays.unrequested_days():
            runner.write(
                f"{format_count(len(days), 'imported day')} from {days[0]} to {days[-1]} were not "
                f"replayed: `rlhf replay{'' if waiting else ' --never-asked'}` reads their votes."
            )
        raise


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
    runner.store.decisions.fire_by_hand(reason, actor="rlhf run", now=datetime.now(UTC))
    run_pending_decisions(runner, day)


def run_pending_decisions(runner: Runner, day: str) -> None:
    """Run what the decisions that wait for a run ask for."""
    try:
        runner.run_tick("retraining", day, {})
    finally:
        runner.tick("retraining")  # records how the run ended

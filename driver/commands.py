"""What the commands `demo`, `loop`, `policy`, `replay` and `run` do in Dagster.

The environment names the home, as it does for the definitions. Each function returns once its work
is done, and raises PipelineError where it failed and SystemExit after Ctrl-C.
"""

from collections.abc import Sequence
from datetime import UTC, datetime
from time import monotonic
from typing import Any

import dagster as dg

from rlhf_pipeline.application.assets import STAGES
from rlhf_pipeline.application.assets.delivery import config_class
from rlhf_pipeline.application.assets.retraining_decision import DECISION_TAG
from rlhf_pipeline.application.driver.demo import Demo
from rlhf_pipeline.application.driver.demo_report import print_summary
from rlhf_pipeline.application.driver.lock import HomeInUse
from rlhf_pipeline.application.driver.loop import run_loop
from rlhf_pipeline.application.driver.replay import (
    describe_decisions,
    describe_unwatched_days,
    replay_days,
)
from rlhf_pipeline.application.driver.run import JobOrder, run_job, run_pending_decisions
from rlhf_pipeline.application.driver.session import open_runner, silence_logs, take_interrupt
from rlhf_pipeline.application.sensors.runs import describe_failure
from rlhf_pipeline.core.config import Settings, project_folder
from rlhf_pipeline.core.errors import ConfigurationError
from rlhf_pipeline.core.parameters import parse_parameters
from rlhf_pipeline.core.terminal import escape_markup
from rlhf_pipeline.improve.retraining.jobs import JobRun
from rlhf_pipeline.reports.words import format_count
from rlhf_pipeline.store import Store


def demo(days: int) -> None:
    started, settings = monotonic(), read_settings()
    with take_interrupt("The same command goes on with the day that is unfinished.") as console:
        with open_runner(settings, console) as runner:
            Demo(runner).run_days(days)
        print_summary(settings, console)
        console.print(
            f"\n{format_count(days, 'day')} in {monotonic() - started:.0f} s. Where to look next:\n"
            "  make dev           the same runs, plots, checks and models in Dagster and MLflow\n"
            "  make demo          further days of the same history\n"
            "  .venv/bin/rlhf models list · rlhf status · rlhf export reflection-log"
        )


def replay(*, after_import: bool = False) -> None:
    """Replay the days that wait. With `after_import`, a home in use is no error: the process that
    uses it replays them too.
    """
    settings, started = read_settings(), monotonic()
    with take_interrupt("`rlhf replay` goes on with the day that is unfinished.") as console:
        try:
            with open_runner(settings, console) as runner:
                days = runner.store.replays.pending_days()
                for n, day in enumerate(replay_days(runner), start=1):
                    for line in describe_decisions(runner.store, day):
                        runner.write(f"  trigger: {escape_markup(line)}")
                    seconds = monotonic() - started
                    runner.write(f"[bold]{day}[/] replayed, {n} of {len(days)}, {seconds:.0f} s")
                if note := describe_unwatched_days(settings, runner.store, days):
                    runner.write(note)
        except HomeInUse as cause:
            if not after_import:
                raise
            with Store.of_home(settings) as store:
                n_days = len(store.replays.pending_days())
            console.print(
                f"{n_days} imported days wait for their replay. The process that uses the home "
                f"takes them too, or `rlhf replay` does later. {escape_markup(str(cause))}"
            )


def run(job: str, first_day: str | None, last_day: str | None, reason: str,
        changes: Sequence[str]) -> None:  # fmt: skip
    """Run a job for its days. `changes` are STAGE.FIELD=VALUE."""
    with (
        take_interrupt("The same command runs the job again.") as console,
        open_runner(read_settings(), console) as runner,
    ):
        run_job(runner, JobOrder(job, first_day, last_day, parse_stage_config(changes), reason))


def loop(*, once: bool, monitors_drift: bool, changes: Sequence[str]) -> None:
    with (
        take_interrupt("The same command goes on.") as console,
        open_runner(read_settings(), console) as runner,
    ):
        runner.stage_config = parse_stage_config(changes)
        run_loop(runner, monitors_drift=monitors_drift, once=once)


def train() -> bool:
    """Run the jobs that wait for a run; False while another process uses the home."""
    with take_interrupt("The same command goes on from the last checkpoint.") as console:
        try:
            with open_runner(read_settings(), console) as runner:
                run_pending_decisions(runner, f"{datetime.now(UTC).date()}")
        except HomeInUse:
            return False
    return True


def read_job_runs(decision_ids: Sequence[int]) -> dict[int, JobRun]:
    """By decision, the last run of those that have one."""
    silence_logs()
    with dg.DagsterInstance.get() as instance:
        job_runs = find_job_runs(instance, [str(decision_id) for decision_id in decision_ids])
    return {int(decision_id): run for decision_id, run in job_runs.items()}


def read_settings() -> Settings:
    """As the definitions read them."""
    return Settings.read(folder=project_folder())


CONFIG_CLASSES = {
    stage.key.to_user_string(): params_class
    for stage in STAGES
    if isinstance(stage, dg.AssetsDefinition) and (params_class := config_class(stage)) is not None
}


def parse_stage_config(changes: Sequence[str]) -> dict[str, dict[str, Any]]:
    """By stage, the fields that `changes` set. Raises ConfigurationError naming stage, field and
    the known ones.
    """
    by_stage: dict[str, list[str]] = {}
    for change in changes:
        stage, dot, assignment = change.partition(".")
        if not dot or stage not in CONFIG_CLASSES:
            raise ConfigurationError(
                f"--set {change!r} names no stage with parameters. Write STAGE.FIELD=VALUE; the "
                f"stages are {', '.join(CONFIG_CLASSES)}."
            )
        by_stage.setdefault(stage, []).append(assignment)
    return {
        stage: parse_parameters(CONFIG_CLASSES[stage], assignments).model_dump(
            mode="json", exclude_unset=True
        )
        for stage, assignments in by_stage.items()
    }


def find_job_runs(instance: dg.DagsterInstance, decision_ids: Sequence[str]) -> dict[str, JobRun]:
    """The last run of each of these decisions that has one."""
    if not decision_ids:
        return {}
    job_filter = dg.RunsFilter(tags={DECISION_TAG: list(decision_ids)})
    records = instance.get_run_records(job_filter, ascending=True)
    return {
        record.dagster_run.tags[DECISION_TAG]: _describe_run(instance, record) for record in records
    }


def _describe_run(instance: dg.DagsterInstance, record: dg.RunRecord) -> JobRun:
    run = record.dagster_run
    has_failed = run.status == dg.DagsterRunStatus.FAILURE
    return JobRun(
        run_id=run.run_id,
        status=run.status.value,
        updated_at=record.update_timestamp,
        started_at=_to_time(record.start_time),
        ended_at=_to_time(record.end_time),
        error=describe_failure(instance, run.run_id) if has_failed else None,
    )


def _to_time(seconds: float | None) -> datetime | None:
    return None if seconds is None else datetime.fromtimestamp(seconds, UTC)

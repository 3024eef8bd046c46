"""What the commands `demo`, `lab`, `loop`, `policy`, `replay` and `run` do in Dagster.

The environment names the home, as it does for the definitions. Each function returns once its work
is done, and raises PipelineError where it failed and SystemExit after Ctrl-C.
"""

import os
import signal
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from datetime import UTC, datetime, timedelta
from pathlib import Path
from time import monotonic

import dagster as dg
from rich.console import Console
from rich.table import Table

from driver import terminal
from driver.lock import HomeInUse, lock_home, refuse_daemon
from rlhf_pipeline.config import Settings
from rlhf_pipeline.retraining.jobs import JobRun
from rlhf_pipeline.store import Store
from rlhf_pipeline.terminal import escape_markup

ROOT = Path(__file__).parent.parent
WIDTH = 132  # columns where there is no terminal
REPLAY_WIDTH = 160
SAME_COMMAND = "The same command goes on."


def demo(days: int) -> None:
    started, settings = monotonic(), read_settings()
    with take_interrupt("The same command goes on with the day that is unfinished.") as console:
        with open_home(settings, console) as instance:
            # here and below: these imports make Dagster's definitions, which a home that is in
            # use does not need
            from driver.demo import run_demo

            run_demo(settings, days, instance, console)
        from driver.demo_report import print_summary

        print_summary(settings, console)
        console.print(
            f"\n{days} days in {monotonic() - started:.0f} s. Where to look next:\n"
            "  make dev           the same runs, plots, checks and models in Dagster and MLflow\n"
            "  make demo          further days of the same history; make demo-clean starts over\n"
            "  .venv/bin/rlhf models list · rlhf status · rlhf export reflection-log"
        )


def lab(scenario: str, seed: int) -> None:
    settings = read_settings()
    with take_interrupt("The same command starts over.") as console:
        with open_home(settings, console) as instance:
            from driver.laboratory import run_world
            from rlhf_pipeline.laboratory.tables import build_claims

            claims = run_world(settings, scenario, seed, instance, console)
        table = Table(title=f"{scenario}, seed {seed}, through the assets")
        for column in build_claims(claims)[0]:
            table.add_column(column)
        for row in build_claims(claims):
            table.add_row(*map(escape_markup, row.values()))
        console.print(table)


def replay(*, after_import: bool = False) -> None:
    """Replay the days that wait. With `after_import`, a home in use is no error: the process that
    uses it replays them too.
    """
    settings = read_settings()
    with take_interrupt(
        "`rlhf replay` goes on with the day that is unfinished.", REPLAY_WIDTH
    ) as console:
        try:
            with open_home(settings, console) as instance:
                from driver.replay import run_replay

                run_replay(settings, instance, console)
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
    settings = read_settings()
    with (
        take_interrupt("The same command runs the job again.") as console,
        open_home(settings, console) as instance,
    ):
        from driver.run import JobOrder, run_job
        from driver.stage_config import parse_stage_config

        order = JobOrder(job, first_day, last_day, parse_stage_config(changes), reason)
        run_job(settings, instance, order, console)


def loop(*, once: bool, monitors_drift: bool, changes: Sequence[str]) -> None:
    settings = read_settings()
    with (
        take_interrupt(SAME_COMMAND) as console,
        open_home(settings, console) as instance,
    ):
        from driver.loop import run_loop
        from driver.stage_config import parse_stage_config

        run_loop(
            settings,
            instance,
            console,
            stage_config=parse_stage_config(changes),
            monitors_drift=monitors_drift,
            once=once,
        )


def train(decision_id: int) -> None:
    """Run the job here, or wait while the process that uses the home does; the holder of its lock
    may run something else, so the home is tried again while the job is queued.
    """
    settings = read_settings()
    limit = timedelta(seconds=settings.dead_after_seconds)
    is_waiting = False
    with take_interrupt("The same command goes on from the last checkpoint.") as console:
        while True:
            try:
                with open_home(settings, console, is_quiet=is_waiting) as instance:
                    from driver.run import run_pending_decisions, show_runs

                    with show_runs(settings, instance, console) as (runner, _):
                        run_pending_decisions(runner, f"{datetime.now(UTC).date()}")
                return
            except HomeInUse:
                from driver.job_runs import wait_for_end

                if not is_waiting:
                    console.print(
                        "Another process uses this home. It runs the job, or this one does "
                        "afterwards. Ctrl-C ends the waiting."
                    )
                is_waiting = True
                with dg.DagsterInstance.get() as instance, Store.of_home(settings) as store:
                    if not wait_for_end(instance, store, decision_id, limit):
                        return


def read_job_runs(decision_ids: Sequence[int]) -> dict[int, JobRun]:
    """By decision, the last run of those that have one."""
    from driver.job_runs import find_job_runs

    terminal.silence_logs()
    with dg.DagsterInstance.get() as instance:
        found = find_job_runs(instance, [str(decision_id) for decision_id in decision_ids])
    return {int(decision_id): run for decision_id, run in found.items()}


def read_settings() -> Settings:
    """As the definitions read them."""
    return Settings.read(folder=ROOT)


@contextmanager
def take_interrupt(after: str, width: int = WIDTH) -> Iterator[Console]:
    """A console for a command. After Ctrl-C it says what comes next, and later ones do not disturb
    the end.
    """
    before = signal.signal(signal.SIGINT, terminal.interrupt_once)
    console = terminal.make_console(width)
    try:
        yield console
    except (KeyboardInterrupt, dg.DagsterExecutionInterruptedError):
        signal.signal(signal.SIGINT, signal.SIG_IGN)
        console.print(f"Interrupted. {after}")
        raise SystemExit(terminal.INTERRUPTED) from None
    signal.signal(signal.SIGINT, before)


@contextmanager
def open_home(
    settings: Settings, console: Console, *, is_quiet: bool = False
) -> Iterator[dg.DagsterInstance]:
    """Dagster's instance of a home that no other process drives. Raises HomeInUse."""
    terminal.silence_logs()
    os.environ.update(settings.dagster_environ)
    with lock_home(settings.home), dg.DagsterInstance.get() as instance:
        refuse_daemon(instance, settings.home, ignore_text if is_quiet else console.print)
        yield instance


def ignore_text(text: str) -> None:
    """A callback that does nothing."""

"""Opens a home for a command: one process at a time, one line per stage, Ctrl-C taken once."""

import logging
import os
import signal
import sqlite3
import sys
import warnings
from collections.abc import Callable, Iterator
from contextlib import ExitStack, closing, contextmanager
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import NoReturn

import dagster as dg
from rich.console import Console
from rich.progress import (
    BarColumn,
    Progress,
    TextColumn,
    TimeElapsedColumn,
    TimeRemainingColumn,
)

from rlhf_pipeline.application.driver.lock import lock_home, refuse_daemon
from rlhf_pipeline.application.driver.run_launcher import is_dead
from rlhf_pipeline.application.driver.runner import Runner, StageRun
from rlhf_pipeline.application.jobs.loop import RETRIES_TAG
from rlhf_pipeline.application.sensors.runs import release_request
from rlhf_pipeline.core import protocols
from rlhf_pipeline.core.config import Settings
from rlhf_pipeline.core.terminal import escape_markup
from rlhf_pipeline.store import Store

INTERRUPTED = 130  # exit code after Ctrl-C: 128 + SIGINT
WIDTH = 160  # columns where there is no terminal: Rich assumes 80


@contextmanager
def take_interrupt(after: str) -> Iterator[Console]:
    """A console for a command. After Ctrl-C it says what comes next, and later ones do not disturb
    the end.
    """
    before = signal.signal(signal.SIGINT, _interrupt_once)
    console = Console(highlight=False, width=None if sys.stdout.isatty() else WIDTH)
    try:
        yield console
    except (KeyboardInterrupt, dg.DagsterExecutionInterruptedError):
        signal.signal(signal.SIGINT, signal.SIG_IGN)
        console.print(f"Interrupted. {after}")
        raise SystemExit(INTERRUPTED) from None
    signal.signal(signal.SIGINT, before)


def _interrupt_once(*_: object) -> NoReturn:
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    raise KeyboardInterrupt


@contextmanager
def open_runner(settings: Settings, console: Console) -> Iterator[Runner]:
    """A runner on the application's own composition, which prints one line per stage below the bars
    of those that work. What a dead process left is ended. Raises HomeInUse.
    """
    silence_logs()
    os.environ.update(settings.dagster_environ)
    with (
        lock_home(settings.home),
        dg.DagsterInstance.get() as instance,
        _keep_open(settings.home / "dagster" / "history"),
        Progress(
            TextColumn("  {task.description}"),
            BarColumn(),
            TextColumn("{task.completed:.0f}/{task.total:.0f} {task.fields[note]}"),
            TimeElapsedColumn(),
            TimeRemainingColumn(),
            console=console,
            transient=True,
        ) as bars,
    ):
        refuse_daemon(instance, settings.home, bars.console.print)
        # here: the import makes the definitions of the settings in the environment, which a home
        # that is in use does not need
        from rlhf_pipeline.application.definitions import definitions_for

        def build() -> dg.Definitions:
            return definitions_for(settings, progress=_show_progress(bars))

        def print_stage(run: StageRun) -> None:
            bars.console.print(
                f"  {datetime.now(UTC):%H:%M} {run.day} {run.stage:<18} {run.seconds:5.1f} s  "
                f"{escape_markup(run.headline)}"
            )

        runner = Runner(
            settings,
            build(),
            instance,
            Store.of_home(settings),
            on_stage=print_stage,
            write=bars.console.print,
            build=build,
        )
        dead_after = timedelta(seconds=settings.dead_after_seconds)
        fail_dead_runs(runner.instance, runner.store, dead_after)
        yield runner


@contextmanager
def _keep_open(history: Path) -> Iterator[None]:
    """Hold a connection to Dagster's SQLite files: it opens and closes them for each event, and the
    last one to close copies the write-ahead log, which is a third of the time of a small run.
    """
    with ExitStack() as stack:
        for path in (history / "runs.db", history / "runs" / "index.db"):
            if path.exists():  # not on Postgres
                connection = stack.enter_context(closing(sqlite3.connect(path)))
                connection.execute("SELECT name FROM sqlite_master").fetchall()
        yield


def _show_progress(bars: Progress) -> Callable[[str], protocols.Progress]:
    """A bar per stage while it works, in place of lines in the run's log."""

    def progress_for(stage: str) -> protocols.Progress:
        task = bars.add_task(stage, total=1, note="", visible=False)

        def report(done: int, total: int, note: str = "") -> None:
            bars.update(task, completed=done, total=total, note=note, visible=done < total)

        return report

    return progress_for


def silence_logs() -> None:
    """Keep warnings and logs out of the terminal; Dagster keeps its own event log."""
    warnings.filterwarnings("ignore")
    logging.getLogger("dagster").setLevel(logging.CRITICAL)
    # Frouros gives the root logger a handler of its own, and Great Expectations logs every folder
    # that it makes.
    handler = logging.StreamHandler()
    handler.setLevel(logging.WARNING)
    logging.basicConfig(handlers=[handler])
    for name in ("alembic", "great_expectations", "mlflow"):
        logging.getLogger(name).setLevel(logging.WARNING)


def fail_dead_runs(instance: dg.DagsterInstance, store: Store, limit: timedelta) -> list[str]:
    """Fail unfinished runs whose process is gone and return their ids."""
    statuses = [
        dg.DagsterRunStatus.NOT_STARTED,
        dg.DagsterRunStatus.STARTING,
        dg.DagsterRunStatus.STARTED,
        dg.DagsterRunStatus.CANCELING,
    ]
    dead = [
        r.dagster_run
        for r in instance.get_run_records(dg.RunsFilter(statuses=statuses))
        if _is_dead(r, store, limit)
    ]
    for run in dead:
        if run.remote_job_origin is None:  # a daemon would request it too
            instance.add_run_tags(run.run_id, {RETRIES_TAG: "0"})
        instance.report_run_failed(run, "The process of this run is gone.")
        release_request(instance, run.run_id)
        instance.event_log_storage.free_concurrency_slots_for_run(run.run_id)
        store.heartbeats.clear(run.run_id)
    return [run.run_id for run in dead]


def _is_dead(record: dg.RunRecord, store: Store, limit: timedelta) -> bool:
    run = record.dagster_run
    beat = store.heartbeats.get(run.run_id)
    # without a beat: run in a command that was killed before its first one
    never_began = beat is None and run.remote_job_origin is None
    return never_began or is_dead(record.update_timestamp, beat, datetime.now(UTC), 2 * limit)

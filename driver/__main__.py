"""`python -m driver TASK`: the tasks that the command line runs in a process of their own.

`demo`, `lab`, `replay`, `run`, `loop` and `train` print for people; all others print one JSON
object a line. RLHF_HOME and DAGSTER_HOME name the home.
"""

import argparse
import json
import logging
import os
import signal
import sys
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import UTC, datetime, timedelta
from functools import partial
from pathlib import Path
from time import monotonic
from typing import Any

from rlhf_pipeline.config import DAGSTER_URL, Settings, silence_telemetry

silence_telemetry()

import dagster as dg  # noqa: E402
from rich.console import Console  # noqa: E402
from rich.table import Table  # noqa: E402

from driver import dagster_history, terminal  # noqa: E402
from driver.lock import HomeInUse, lock_home, refuse_daemon  # noqa: E402
from rlhf_pipeline.errors import PipelineError  # noqa: E402
from rlhf_pipeline.store import Store  # noqa: E402
from rlhf_pipeline.terminal import escape_markup  # noqa: E402


def demo(settings: Settings, arguments: argparse.Namespace, console: Console) -> int:
    started = monotonic()
    with open_home(settings, console) as instance:
        # here and below: these imports make Dagster's definitions, which `state` does not need
        from driver.demo import run_demo

        history = run_demo(settings, arguments.days, instance, console)
    from driver.demo_report import print_summary

    print_summary(settings, history, console)
    console.print(
        f"\n{arguments.days} days in {monotonic() - started:.0f} s. Where to look next:\n"
        "  make dev           the same runs, plots, checks and models in Dagster and MLflow\n"
        "  make demo          further days of the same history; make demo-clean starts over\n"
        "  .venv/bin/rlhf models list · rlhf status · rlhf export reflection-log"
    )
    return 0


def lab(settings: Settings, arguments: argparse.Namespace, console: Console) -> int:
    with open_home(settings, console) as instance:
        from driver.laboratory import run_world
        from rlhf_pipeline.laboratory.tables import build_claims

        claims = run_world(settings, arguments.scenario, arguments.seed, instance, console)
    table = Table(title=f"{arguments.scenario}, seed {arguments.seed}, through the assets")
    for column in build_claims(claims)[0]:
        table.add_column(column)
    for row in build_claims(claims):
        table.add_row(*map(escape_markup, row.values()))
    console.print(table)
    return 0


def replay(settings: Settings, arguments: argparse.Namespace, console: Console) -> int:
    with Store.of_home(settings) as store:
        n_days = len(store.replays.pending_days())
    if not n_days:
        console.print("No imported day waits for its replay.")
        return 0
    try:
        with open_home(settings, console) as instance:
            from driver.replay import run_replay

            run_replay(settings, instance, console)
    except HomeInUse as cause:
        if not arguments.after_import:
            raise
        console.print(
            f"{n_days} imported days wait for their replay. The process that uses the home takes "
            f"them too, or `rlhf replay` does later. {escape_markup(str(cause))}"
        )
    return 0


def run(settings: Settings, arguments: argparse.Namespace, console: Console) -> int:
    with open_home(settings, console) as instance:
        from driver.run import JobOrder, run_job
        from driver.stage_config import parse_stage_config

        order = JobOrder(
            arguments.job,
            arguments.first_day,
            arguments.last_day,
            parse_stage_config(arguments.changes),
            arguments.reason,
        )
        run_job(settings, instance, order, console)
    return 0


def loop(settings: Settings, arguments: argparse.Namespace, console: Console) -> int:
    with open_home(settings, console) as instance:
        from driver.loop import run_loop
        from driver.stage_config import parse_stage_config

        run_loop(
            settings,
            instance,
            console,
            stage_config=parse_stage_config(arguments.changes),
            monitors_drift=arguments.monitor_drift,
            once=arguments.once,
        )
    return 0


def train(settings: Settings, arguments: argparse.Namespace, console: Console) -> int:
    """Run the job here, or wait while the process that uses the home does; the holder of its lock
    may run something else, so the home is tried again while the job is queued.
    """
    limit = timedelta(seconds=settings.dead_after_seconds)
    is_waiting = False
    while True:
        try:
            with open_home(settings, console, is_quiet=is_waiting) as instance:
                from driver.run import run_pending_decisions, show_runs

                with show_runs(settings, instance, console) as (runner, _):
                    run_pending_decisions(runner, f"{datetime.now(UTC).date()}")
            return 0
        except HomeInUse:
            from driver.job_runs import wait_for_end

            if not is_waiting:
                console.print(
                    "Another process uses this home. It runs the job, or this one does afterwards. "
                    "Ctrl-C ends the waiting."
                )
            is_waiting = True
            with open_instance() as instance, Store.of_home(settings) as store:
                if not wait_for_end(instance, store, arguments.decision_id, limit):
                    return 0


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


def print_fact(**fact: Any) -> None:
    print(json.dumps(fact), flush=True)


def print_progress(done: int, total: int, note: str = "") -> None:
    print_fact(progress=[done, total, note])


def make_tables() -> None:
    dagster_history.open_target(os.environ[DAGSTER_URL])


def move_history() -> None:
    for table in dagster_history.move_history(
        Path(os.environ["DAGSTER_HOME"]), os.environ[DAGSTER_URL], print_progress
    ):
        print_fact(table=table.model_dump())


def print_state() -> None:
    with open_instance() as instance:
        print_fact(state=dagster_history.read_state(instance))


def open_instance() -> dg.DagsterInstance:
    return dg.DagsterInstance.from_config(os.environ["DAGSTER_HOME"])


def print_job_runs(decision_ids: list[str]) -> None:
    from driver.job_runs import find_job_runs

    with open_instance() as instance:
        for decision_id, run in find_job_runs(instance, decision_ids).items():
            print_fact(decision_id=decision_id, run=run.model_dump(mode="json"))


FACT_TASKS: dict[str, Callable[..., None]] = {
    "state": print_state,
    "make-tables": make_tables,
    "move": move_history,
    "job-runs": print_job_runs,
}


def print_facts(task: Callable[[], None]) -> int:
    warnings.filterwarnings("ignore")
    logging.disable(logging.WARNING)
    try:
        task()
    except PipelineError as error:
        print_fact(error=str(error))
        return 1
    return 0


# By task: what it does, the width of its output where there is no terminal, and what Ctrl-C says.
PRINTING_TASKS: dict[str, tuple[Callable[..., int], int, str]] = {
    "demo": (demo, 132, "The same command goes on with the day that is unfinished."),
    "lab": (lab, 132, "The same command starts over."),
    "replay": (replay, 160, "`rlhf replay` goes on with the day that is unfinished."),
    "run": (run, 132, "The same command runs the job again."),
    "loop": (loop, 132, "The same command goes on."),
    "train": (train, 132, "The same command goes on from the last checkpoint."),
}


def make_parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m driver")
    tasks = parser.add_subparsers(dest="task", required=True)
    tasks.add_parser("demo").add_argument("--days", type=int, required=True)
    world = tasks.add_parser("lab")
    world.add_argument("scenario")
    world.add_argument("--seed", type=int, required=True)
    tasks.add_parser("replay").add_argument("--after-import", action="store_true")
    job = tasks.add_parser("run")
    job.add_argument("job")
    job.add_argument("--from", dest="first_day")
    job.add_argument("--to", dest="last_day")
    job.add_argument("--reason", default="")
    forever = tasks.add_parser("loop")
    forever.add_argument("--once", action="store_true")
    forever.add_argument("--no-monitor-drift", dest="monitor_drift", action="store_false")
    for task in (job, forever):
        task.add_argument("--set", dest="changes", action="append", default=[])
    tasks.add_parser("train").add_argument("decision_id", type=int)
    for name in FACT_TASKS:
        facts = tasks.add_parser(name)
        if name == "job-runs":
            facts.add_argument("decision_ids", nargs="*")
    return parser


def main(words: list[str]) -> int:
    arguments = make_parser().parse_args(words)
    if arguments.task in FACT_TASKS:
        given = {name: value for name, value in vars(arguments).items() if name != "task"}
        return print_facts(partial(FACT_TASKS[arguments.task], **given))
    task, width, after_interrupt = PRINTING_TASKS[arguments.task]
    signal.signal(signal.SIGINT, terminal.interrupt_once)
    console = terminal.make_console(width)
    try:
        return task(Settings.read(), arguments, console)
    except (KeyboardInterrupt, dg.DagsterExecutionInterruptedError):
        signal.signal(signal.SIGINT, signal.SIG_IGN)
        console.print(f"Interrupted. {after_interrupt}")
        return terminal.INTERRUPTED
    except PipelineError as error:
        console.print(f"[red]{type(error).__name__}: {escape_markup(str(error))}[/]")
        return 1


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))

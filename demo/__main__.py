"""`python -m demo --days N`: called by `rlhf demo` with RLHF_HOME set and annotators simulated."""

import argparse
import logging
import os
import signal
import sys
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import date
from itertools import pairwise
from pathlib import Path
from time import monotonic
from typing import NoReturn

from rlhf_pipeline.config import Settings, silence_telemetry
from rlhf_pipeline.terminal import escape_markup

silence_telemetry()

import dagster as dg  # noqa: E402
from filelock import FileLock, Timeout  # noqa: E402
from rich.console import Console  # noqa: E402
from rich.progress import (  # noqa: E402
    BarColumn,
    Progress,
    TextColumn,
    TimeElapsedColumn,
    TimeRemainingColumn,
)

from demo import table  # noqa: E402
from demo.in_process import StageRun  # noqa: E402
from demo.loop import Loop  # noqa: E402
from demo.state import DemoState  # noqa: E402
from demo.true_utility import measure_true_utility, policy_version  # noqa: E402
from rlhf_pipeline import protocols  # noqa: E402
from rlhf_pipeline.artefacts import Artefacts  # noqa: E402
from rlhf_pipeline.errors import ConfigurationError, PipelineError  # noqa: E402
from rlhf_pipeline.intervals import interval_of_mean  # noqa: E402
from rlhf_pipeline.simulation import SCENARIOS  # noqa: E402
from rlhf_pipeline.store import Store  # noqa: E402
from rlhf_pipeline.votes import noise_ceiling_or_repeats  # noqa: E402
from rlhf_pipeline.votes.counting import counting  # noqa: E402

INTERRUPTED = 130  # exit code of a program that Ctrl-C ended: 128 + SIGINT
# A pipe has no width: tables would be squeezed into 80 columns.
console = Console(highlight=False, width=None if sys.stdout.isatty() else 132)


def interrupt_once(*_: object) -> NoReturn:
    """Ctrl-C ends the demo; an impatient second one does not interrupt how it ends."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    raise KeyboardInterrupt


def main() -> int:
    parser = argparse.ArgumentParser(prog="rlhf demo")
    parser.add_argument("--days", type=int, required=True)
    arguments = parser.parse_args()
    settings = Settings.read()
    started = monotonic()
    signal.signal(signal.SIGINT, interrupt_once)
    try:
        with lock_home(settings.home):
            history = run(settings, arguments.days)
    except PipelineError as error:
        console.print(f"[red]{type(error).__name__}: {escape_markup(str(error))}[/]")
        return 1
    except (KeyboardInterrupt, dg.DagsterExecutionInterruptedError):
        signal.signal(signal.SIGINT, signal.SIG_IGN)
        console.print("Interrupted. The same command goes on with the day that is unfinished.")
        return INTERRUPTED
    print_summary(settings, history)
    console.print(f"\n{arguments.days} days in {monotonic() - started:.0f} s. Where to look next:")
    console.print(
        "  make dev           the same runs, plots, checks and models in Dagster and MLflow"
    )
    console.print(
        "  make demo          further days of the same history; make demo-clean starts over"
    )
    console.print("  .venv/bin/rlhf models list · rlhf runs · rlhf export reflection-log")
    return 0


@contextmanager
def lock_home(home: Path) -> Iterator[None]:
    """Keeps a second demo out of this home, or raises ConfigurationError where one is at work; a
    killed one keeps nobody out.
    """
    lock = FileLock(home / "demo.lock", timeout=0)
    try:
        lock.acquire()
    except Timeout as cause:
        raise ConfigurationError(
            f"Another demo is at work on {home}; two would simulate the same day twice. Wait until "
            "it is done, or name another folder, as in `make demo RLHF_HOME=var/demo`."
        ) from cause
    try:
        yield
    finally:
        lock.release()


def run(settings: Settings, n_days: int) -> list[StageRun]:
    """The next `n_days` of the history, from where the last call ended or was ended."""
    silence_logs()
    os.environ.update(settings.dagster_environ)
    days = next_days(DemoState.read(settings.demo_state), n_days)
    console.print(
        f"[bold]project {settings.project}[/] · {days[0]} … {days[-1]} · scenario "
        f"{settings.scenario} · state in {settings.home}"
    )
    with make_progress_bars(console) as progress, dg.DagsterInstance.get() as instance:
        # The application's own composition; only the progress goes to the terminal instead of the
        # log.
        from definitions import definitions_for

        store = Store.open(
            settings.store_url, organization=settings.organization, project=settings.project
        )
        defs = definitions_for(settings, progress=show_progress(progress))
        loop = Loop(settings, defs, instance, store, print_stage(progress))
        loop.resume()
        for day in days:
            index = (date.fromisoformat(day) - settings.start_day).days
            progress.console.print(
                f"\n[bold]day {index + 1} · {day}[/] · annotators' taste: "
                f"{SCENARIOS[settings.scenario].taste_on(index).name}"
            )
            loop.run_day(day)
    return loop.history


def next_days(state: DemoState, n_days: int) -> list[str]:
    """Days after the last finished one. Raises ConfigurationError when the history has reached
    today.
    """
    from assets.partitions import DAYS

    known = DAYS.get_partition_keys()
    left = [day for day in known if state.finished is None or day > state.finished][:n_days]
    if len(left) < n_days:
        raise ConfigurationError(
            f"The simulated history has only {len(left)} days left before today. `make demo-clean` "
            "starts over."
        )
    return left


def print_summary(settings: Settings, history: list[StageRun]) -> None:
    store = Store.open(
        settings.store_url, organization=settings.organization, project=settings.project
    )
    files = Artefacts(settings.frames, store.file_hashes)
    rows = collect_day_rows(settings, files)
    promotions = store.promotions.history(f"{settings.project}.policy")
    changed = next((r.day for before, r in pairwise(rows) if before.taste != r.taste), None)
    latest = f"{settings.project}.policy@{promotions[-1].version}" if len(promotions) > 1 else None
    console.print()
    table.print_stages(history, console)
    table.print_calibrations(store.calibrations.log(), console)
    table.print_days(rows, console)
    table.print_decisions(store.decisions.all(), store.gates.all(), console)
    table.print_utility(
        rows, changed, next((r.day for r in rows if r.policy == latest), None), console
    )


def collect_day_rows(settings: Settings, files: Artefacts) -> list[table.DayRow]:
    scenario = SCENARIOS[settings.scenario]
    rows = []
    finished = DemoState.read(settings.demo_state).finished or ""
    # a daemon reports days of its own
    for day in (day for day in files.days("drift_report") if day <= finished):
        reflections, votes, report = (
            files.read_frame(s, day) for s in ("reflection_log", "votes", "drift_report")
        )
        judged = reflections.dropna(subset=["is_error"])
        correct = 1 - judged["is_error"].astype(float).to_numpy()
        overall = report[report["space"] == "overall"].iloc[0]
        rows.append(
            table.DayRow(
                day=day,
                taste=scenario.taste_on((date.fromisoformat(day) - settings.start_day).days).name,
                policy=policy_version(files, day),
                judge=str(judged["reward_model"].iloc[0]) if len(judged) else "-",
                n_votes=len(counting(votes)),
                accuracy=interval_of_mean(correct, groups=judged["comparison_id"].tolist())
                if len(judged)
                else None,
                ceiling=noise_ceiling_or_repeats(votes),
                verdict=str(overall["verdict"]),
                utility=measure_true_utility(files, settings, day),
            )
        )
    return rows


def make_progress_bars(console: Console) -> Progress:
    columns = (
        TextColumn("  {task.description}"),
        BarColumn(),
        TextColumn("{task.completed:.0f}/{task.total:.0f} {task.fields[note]}"),
    )
    return Progress(
        *columns, TimeElapsedColumn(), TimeRemainingColumn(), console=console, transient=True
    )


def show_progress(progress: Progress) -> Callable[[str], protocols.Progress]:
    def progress_for(stage: str) -> protocols.Progress:
        task = progress.add_task(stage, total=1, note="", visible=False)

        def report(done: int, total: int, note: str = "") -> None:
            progress.update(task, completed=done, total=total, note=note, visible=done < total)

        return report

    return progress_for


def print_stage(progress: Progress) -> Callable[[StageRun], None]:
    return lambda run: progress.console.print(
        f"  {run.stage:<17} {run.seconds:5.1f} s  {run.headline}"
    )


def silence_logs() -> None:
    """Warnings and logs of Dagster go to its own event log, not between the demo's lines."""
    warnings.filterwarnings("ignore")
    logging.getLogger("dagster").setLevel(logging.CRITICAL)
    # Frouros gives the root logger a handler of its own, and Great Expectations tells it of every
    # folder it makes.
    handler = logging.StreamHandler()
    handler.setLevel(logging.WARNING)
    logging.basicConfig(handlers=[handler])
    for name in ("alembic", "great_expectations", "mlflow"):
        logging.getLogger(name).setLevel(logging.WARNING)


if __name__ == "__main__":
    sys.exit(main())

"""`python -m replay`: called by `rlhf replay` and at the end of an import, with RLHF_HOME set."""

import os
import sys
import warnings
from time import monotonic

from rlhf_pipeline.config import Settings, silence_telemetry
from rlhf_pipeline.terminal import escape_markup

silence_telemetry()

import dagster as dg  # noqa: E402
from rich.console import Console  # noqa: E402

# as in definitions.py, whose assets are imported below
for category in (dg.BetaWarning, dg.PreviewWarning):
    warnings.filterwarnings("ignore", category=category)

from demo.__main__ import make_progress_bars, show_progress, silence_logs  # noqa: E402
from demo.in_process import InProcessRunner, StageRun  # noqa: E402
from replay.day_line import format_day, format_decisions, format_header  # noqa: E402
from replay.driver import ReplayDriver  # noqa: E402
from replay.timeline import write_timeline  # noqa: E402
from rlhf_pipeline.errors import PipelineError  # noqa: E402
from rlhf_pipeline.store import Store  # noqa: E402
from sensors.replay import describe_unpredicted  # noqa: E402

# A pipe has no width: lines would be broken at 80 columns.
console = Console(highlight=False, width=None if sys.stdout.isatty() else 160)
LEARNING_STAGES = ("reward_model", "calibration")


def main() -> int:
    try:
        run(Settings.read())
    except PipelineError as error:
        console.print(f"[red]{type(error).__name__}: {escape_markup(str(error))}[/]")
        return 1
    return 0


def run(settings: Settings) -> None:
    """Every day that waits, oldest first, from where the last call ended or was ended."""
    silence_logs()
    os.environ.update(settings.dagster_environ)
    store = Store.open(
        settings.store_url, organization=settings.organization, project=settings.project
    )
    n_days = len(store.replays.pending_days())
    if not n_days:
        console.print("No imported day waits for its replay.")
        return
    started = monotonic()
    with make_progress_bars(console) as progress, dg.DagsterInstance.get() as instance:
        # The application's own composition; only the progress goes to the terminal instead of the
        # log.
        from definitions import definitions_for

        defs = definitions_for(settings, progress=show_progress(progress))
        say = progress.console.print
        runner = InProcessRunner(
            settings, defs, instance, store, lambda stage: print_learning(stage, say)
        )
        drive = ReplayDriver(
            runner, lambda reason: say(f"  [dim]waits: {escape_markup(reason)}[/]")
        )
        task = progress.add_task(f"replay of {n_days} days", total=n_days, note="days")
        say(
            f"[bold]project {settings.project}[/] · {n_days} days of imported votes · state in "
            f"{settings.home}\n{format_header()}"
        )
        for done, day in enumerate(drive.run_days(), start=1):
            for line in format_decisions(store, day):
                say(escape_markup(line))
            say(format_day(settings, day, drive.seconds[day]))
            progress.update(task, completed=done)
    console.print(f"{n_days} days replayed in {monotonic() - started:.0f} s.")
    for sentence in describe_unpredicted(drive.left_out):
        console.print(f"[yellow]{sentence}.[/]")
    if path := write_timeline(settings, store):
        console.print(f"Errors of all days in vote order, with every signal: {path}")


def print_learning(stage: StageRun, say: object) -> None:
    """What was learnt, between the lines of the days."""
    if stage.stage in LEARNING_STAGES and callable(say):
        say(f"  {stage.day}  {stage.stage}: {stage.headline}")


if __name__ == "__main__":
    sys.exit(main())

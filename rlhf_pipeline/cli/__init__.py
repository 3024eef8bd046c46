"""The `rlhf` command: files and state of every stage from a terminal.

The module of a command is imported when the command is called: all of them together take seconds.
"""

import sys
from functools import cache
from importlib import import_module
from typing import Any

import typer
from typer.core import TyperCommand, TyperGroup
from typer.main import get_command, get_group_from_info
from typer.models import TyperInfo

from rlhf_pipeline.core.config import collect_garbage_rarely, share_cores, silence_telemetry
from rlhf_pipeline.core.errors import PipelineError, translate_memory_errors

# By name: module and attribute, and the first line of the command's own help.
COMMANDS = {
    "new": (
        "new.new",
        "Write a project into a new folder: `rlhf.yaml` with every setting, sample prompts, a "
        "package for own assets, a README.",
    ),
    "init": (
        "init.init",
        "Make the databases and Dagster's home below RLHF_HOME, in seconds. Safe to repeat.",
    ),
    "demo": (
        "demo.demo",
        "Run the loop for several days with simulated annotators whose taste changes; another "
        "call adds days.",
    ),
    "dev": (
        "dev.dev",
        "Start the web app, Dagster (web server and daemon) and MLflow's UI on loopback and print "
        "their addresses, the first admin's login link last.",
    ),
    "serve": (
        "serve.serve",
        "Start the web app and its API; the first start makes an admin and prints a one-time "
        "login link.",
    ),
    "vote": (
        "vote.vote",
        "Vote on comparisons in the terminal, or by lines from a pipe, under the rules of the web "
        "page. `?` shows the keys.",
    ),
    "chat": (
        "chat.chat",
        "Talk to the deployed policy; `/quit` ends.",
    ),
    "run": ("run.run", "Run one job now, in this terminal, with one line per stage."),
    "loop": (
        "run.loop",
        "Keep the project going in this terminal: collect, report, learn and retrain as it falls "
        "due.",
    ),
    "status": (
        "status.status",
        "Show the last run of each stage, what the project waits for, and what comes next.",
    ),
    "generate": (
        "generate.generate",
        "Complete a file of prompts; write JSON, CSV and a log of every call. Run again, it "
        "continues where it stopped.",
    ),
    "replay": (
        "replay.replay",
        "Replay the imported days that wait, oldest first; after a kill or a failure the next "
        "call continues.",
    ),
    "backup": (
        "backup.backup",
        "Copy everything that cannot be made again into a new FOLDER, even while the project is in "
        "use, and check the copy; with exit code 1 where something is missing or damaged.",
    ),
    "restore": (
        "backup.restore",
        "Verify a backup and put it into RLHF_HOME; refused where data is present.",
    ),
    "check": (
        "check.check",
        "Read databases, models and frames; name what is missing, damaged or contradictory, with "
        "exit code 1.",
    ),
    "migrate": (
        "migrate.migrate",
        "Copy store and MLflow from SQLite to a Postgres server and use it from then on; Dagster's "
        "history of runs stays behind.",
    ),
    "export": ("exports.app", "Write comparisons, votes and the loop's logs as files."),
    "import": (
        "preferences.app",
        "Import preferences (pairs and votes, of any known shape) or prompts "
        "from files, or a calibration log. Importing a file twice changes nothing.",
    ),
    "prompts": ("prompts.app", "Make prompts."),
    "models": ("models.app", "Models in the registry."),
    "experiments": ("experiments.app", "Experiments on served versions."),
    "votes": ("votes.app", "Votes of people and of the reward model."),
    "reward": ("reward.app", "The reward model by hand: train, calibrate, predict, probe."),
    "drift": ("drift.app", "Drift reports and clusters of errors in the terminal."),
    "triggers": ("triggers.app", "Decisions to retrain, and what led to each."),
    "policy": ("policy.app", "Training jobs of the policy."),
    "datasets": ("datasets.app", "Curated data sets: build, freeze, export."),
    "trace": (
        "trace.app",
        "Lineage: models, the votes and feedback that taught them, and back.",
    ),
    "retraining": ("retraining.app", "The retraining set as a file."),
    "changes": (
        "changes.app",
        "Changes of taste: votes cast before one weigh less in every later fit.",
    ),
    "users": ("users.app", "People and services that may log in."),
    "settings": ("settings.app", "Loop settings: whether rlhf.yaml is valid."),
    "audit": (
        "audit.app",
        "The audit chain: who did what to what, each link with the hash of the previous one.",
    ),
    "keys": ("keys.app", "Provider keys, sealed in files."),
}


class LazyCommands(TyperGroup):
    """Lists COMMANDS without importing them."""

    def __init__(self, **options: Any) -> None:
        listed = {name: TyperCommand(name, help=text) for name, (_, text) in COMMANDS.items()}
        super().__init__(**options | {"commands": listed})

    def resolve_command(self, ctx: Any, args: list[str]) -> Any:
        name, command, rest = super().resolve_command(ctx, args)
        return name, command if name is None else load_command(name), rest


@cache
def load_command(name: str) -> Any:
    """Import a command or a group of commands."""
    module, attribute = COMMANDS[name][0].split(".")
    target = getattr(import_module(f"rlhf_pipeline.cli.{module}"), attribute)
    if isinstance(target, typer.Typer):
        return get_group_from_info(
            TyperInfo(target, name=name),
            pretty_exceptions_short=True,
            suggest_commands=True,
            rich_markup_mode=app.rich_markup_mode,
        )
    single = typer.Typer(add_completion=False)
    single.command(name)(target)
    return get_command(single)


app = typer.Typer(
    cls=LazyCommands,
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
)


@app.callback(
    help="The RLHF loop: prompts, completions, votes, reward model, calibration, drift, retraining."
)
def rlhf() -> None:
    """Make Typer build a group from an app without commands of its own."""


def main() -> None:
    """Run a command. An error raised on purpose prints one line and exits with 1; any other error
    is a bug and shows its traceback.
    """
    if sys.platform == "win32":
        sys.exit("rlhf_pipeline needs Linux or macOS. On Windows, install and run it inside WSL.")
    silence_telemetry()
    share_cores()
    collect_garbage_rarely()
    try:
        with translate_memory_errors("This command"):
            app()
    except PipelineError as error:
        from rlhf_pipeline.cli.tables import echo

        echo(f"{type(error).__name__}: {error}", fg=typer.colors.RED, err=True)
        sys.exit(1)

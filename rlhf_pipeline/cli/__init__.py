"""The `rlhf` command: files and state of every stage from a terminal."""

import sys

import typer

from rlhf_pipeline.cli import (
    annotation,
    audit,
    cache,
    changes,
    comparisons,
    demo,
    dev,
    exports,
    generate,
    imports,
    init,
    keys,
    models,
    prompts,
    replay,
    reward,
    run,
    serve,
    settings,
    status,
    storage,
    users,
    vote,
    votes,
)
from rlhf_pipeline.cli.home_gate import gate
from rlhf_pipeline.cli.tables import echo
from rlhf_pipeline.config import collect_garbage_rarely, share_cores, silence_telemetry
from rlhf_pipeline.errors import PipelineError
from rlhf_pipeline.memory_errors import translate_memory_errors

app = typer.Typer(
    help="The RLHF loop: prompts, completions, votes, reward model, calibration, drift, "
    "retraining.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
)
app.command("init")(init.init)
app.command("demo")(demo.demo)
app.command("dev")(dev.dev)
app.command("serve")(serve.serve)
app.command("vote")(vote.vote)
app.command("run")(run.run)
app.command("loop")(run.loop)
app.command("status")(status.status)
app.command("runs")(status.runs)
app.command("generate")(generate.generate)
app.command("replay")(replay.replay)
app.add_typer(exports.app, name="export")
app.add_typer(imports.app, name="import")
app.add_typer(prompts.app, name="prompts")
app.add_typer(models.app, name="models")
app.add_typer(comparisons.app, name="comparisons")
app.add_typer(votes.app, name="votes")
app.add_typer(reward.app, name="reward")
app.add_typer(changes.app, name="changes")
app.add_typer(users.app, name="users")
app.add_typer(annotation.guidelines, name="guidelines")
app.add_typer(annotation.rules, name="rules")
app.add_typer(settings.app, name="settings")
app.add_typer(audit.app, name="audit")
app.add_typer(storage.app, name="storage")
app.add_typer(cache.app, name="cache")
app.add_typer(keys.app, name="keys")
gate(app)


def main() -> None:
    """Run a command. An error raised on purpose prints one line and exits with 1; any other error
    is a bug and shows its traceback.
    """
    silence_telemetry()
    share_cores()
    collect_garbage_rarely()
    try:
        with translate_memory_errors("This command"):
            app()
    except PipelineError as error:
        echo(f"{type(error).__name__}: {error}", fg=typer.colors.RED, err=True)
        sys.exit(1)

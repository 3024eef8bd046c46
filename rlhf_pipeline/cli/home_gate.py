"""Refuses a home that lost a part before a command runs, except for commands that repair it."""

import functools
from collections.abc import Callable
from typing import Any

import typer

from rlhf_pipeline.config import Settings

# `init`, `demo` and `dev` may find no project yet and look themselves; `check` and `restore` are
# for a damaged home; the laboratory needs none.
UNGATED = (
    "init",
    "demo",
    "dev",
    "backup",
    "check",
    "restore",
    "prompts sources",
    "keys new",
    "keys seal",
    "lab run",
    "lab suite",
)


def gate(app: typer.Typer, group: str = "") -> None:
    """Let every command of `app` raise ConfigurationError for a home that lost a part, before it
    reads or writes anything.
    """
    for command in app.registered_commands:
        if command.callback is not None and f"{group}{command.name}" not in UNGATED:
            command.callback = _refusing(command.callback)
    for child in app.registered_groups:
        if child.typer_instance is not None:
            gate(child.typer_instance, f"{group}{child.name} ")


def _refusing(command: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(command)
    def refuse_first(*arguments: Any, **options: Any) -> Any:
        from rlhf_pipeline.store import homes  # opens databases: `--help` does without
        from rlhf_pipeline.telemetry.logs import configure_logs

        settings = Settings.read()
        configure_logs(settings)
        homes.refuse_broken(settings)
        return command(*arguments, **options)

    return refuse_first

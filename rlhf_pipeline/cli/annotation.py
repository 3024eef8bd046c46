"""`rlhf guidelines` and `rlhf rules`: instructions for annotators, and how cards are dealt."""

import secrets
from pathlib import Path
from typing import Annotated, Any

import typer
import yaml
from pydantic import ValidationError

from rlhf_pipeline.cli.context import Workspace
from rlhf_pipeline.cli.tables import echo, show
from rlhf_pipeline.errors import ConfigurationError, NotFound
from rlhf_pipeline.records import AnnotationRules

guidelines = typer.Typer(help="Instructions for annotators, in Markdown.", no_args_is_help=True)
rules = typer.Typer(
    help="How cards are dealt: overlap, repeats, gold, leases, undo, rubric.", no_args_is_help=True
)


@guidelines.callback()
def guidelines_group() -> None:
    """Instructions for annotators, in Markdown."""


@guidelines.command("set")
def set_guidelines(
    file: Annotated[Path, typer.Argument(help="A text file in UTF-8.", show_default=False)],
) -> None:
    """Make a file the newest version of the guidelines; votes keep the version under which they
    were cast.
    """
    try:
        text = file.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as cause:
        raise ConfigurationError(
            f"{file} cannot be read as guidelines: {cause}. Give a text file in UTF-8."
        ) from cause
    if not text.strip():
        raise ConfigurationError(f"{file} is empty. Write what annotators are asked to do.")
    workspace = Workspace.open_current()
    newest = workspace.store.guidelines.latest()
    if newest is not None and newest.text == text:
        echo(f"version {newest.version} has this text already")
        return
    made = workspace.store.guidelines.add(
        text, after=newest.version if newest else 0, actor="rlhf guidelines"
    )
    echo(f"guidelines are at version {made.version}, {len(text):,} characters")


@guidelines.command("show")
def show_guidelines(
    version: Annotated[int | None, typer.Option(min=1, help="Default: the newest.")] = None,
) -> None:
    """Print a version."""
    store = Workspace.open_current().store
    found = store.guidelines.latest() if version is None else store.guidelines.get(version)
    if found is None:
        raise NotFound("There are no guidelines yet. Write some: rlhf guidelines set FILE.")
    echo(found.text)


@rules.callback()
def rules_group() -> None:
    """How cards are dealt: overlap, repeats, gold, leases, undo, rubric."""


@rules.command("show")
def show_rules() -> None:
    """Show the current rules and their meaning."""
    version, held = Workspace.open_current().store.rules.latest()
    rows = [
        {
            "rule": name,
            "value": _format_value(getattr(held, name)),
            "meaning": field.description or "",
        }
        for name, field in AnnotationRules.model_fields.items()
    ]
    show(rows, title=f"rules, version {version}" if version else "default rules", empty="")


@rules.command("set")
def set_rules(
    changes: Annotated[
        list[str],
        typer.Argument(
            metavar="RULE=VALUE...",
            help="Such as overlap=3 requires_reason=true.",
            show_default=False,
        ),
    ],
) -> None:
    """Change rules for cards that are dealt from now on. An empty value removes a limit:
    max_votes_per_day= lifts the cap.
    """
    store = Workspace.open_current().store
    version, held = store.rules.latest()
    # The first rules of a project get a secret random seed, as in the web app: it places the hidden
    # cards.
    drawn = {"seed": secrets.randbits(48)} if version == 0 else {}
    wanted = held.model_dump() | drawn | dict(_parse_change(text) for text in changes)
    try:
        new = AnnotationRules.model_validate(wanted)
    except ValidationError as cause:
        problems = "; ".join(
            f"{e['loc'][0] if e['loc'] else 'rules'}: {e['msg']}" for e in cause.errors()
        )
        raise ConfigurationError(
            f"Invalid rules: {problems}. Nothing was changed; `rlhf rules show` explains each rule."
        ) from cause
    if new == held:
        echo(f"version {version} has these rules already")
        return
    changed = ", ".join(
        f"{n} {_format_value(getattr(held, n))} -> {_format_value(v)}"
        for n, v in new
        if v != getattr(held, n) and not (n == "seed" and drawn)
    )
    echo(
        f"rules are at version {store.rules.put(new, after=version, actor='rlhf rules')}: {changed}"
    )


def _parse_change(text: str) -> tuple[str, Any]:
    name, equals, value = text.partition("=")
    if not equals or name not in AnnotationRules.model_fields:
        raise ConfigurationError(
            f"{text!r} does not name a rule. Write RULE=VALUE; the rules are "
            f"{', '.join(AnnotationRules.model_fields)}."
        )
    if name == "dimensions":
        return name, tuple(part.strip() for part in value.split(",") if part.strip())
    try:
        return name, yaml.safe_load(value)
    except yaml.YAMLError as cause:
        raise ConfigurationError(
            f"{text!r}: the value cannot be read. Write a number, true, false or nothing."
        ) from cause


def _format_value(value: Any) -> str:
    return ", ".join(value) if isinstance(value, tuple) else "none" if value is None else str(value)

"""`rlhf keys`: seals provider keys in files, which are useless without the sealing key."""

import sys
from pathlib import Path
from typing import Annotated

import typer
from pydantic import SecretStr

from rlhf_pipeline.cli.tables import echo
from rlhf_pipeline.core.config import Settings
from rlhf_pipeline.core.files import write_atomically
from rlhf_pipeline.core.secret_files import generate_sealing_key, seal

app = typer.Typer(help="Provider keys, sealed in files.", no_args_is_help=True)


@app.command("new")
def new() -> None:
    """Print a new sealing key for RLHF_SEALING_KEY. Keep it apart from the sealed files: in the
    environment or your secret store.
    """
    echo(generate_sealing_key().get_secret_value())


@app.command("seal")
def seal_(
    file: Annotated[
        Path,
        typer.Argument(help="File to write; set RLHF_API_KEY_FILE to it.", show_default=False),
    ],
) -> None:
    """Read a provider's key from a hidden prompt or a pipe and write it sealed with
    RLHF_SEALING_KEY.
    """
    settings = Settings.read()
    key = (
        typer.prompt("Key of the provider", hide_input=True)
        if sys.stdin.isatty()
        else sys.stdin.read()
    )
    write_atomically(file, (seal(SecretStr(key), settings.sealing_key) + "\n").encode())
    file.chmod(0o600)
    echo(f"Sealed in {file}. Set RLHF_API_KEY_FILE to it.")

"""`rlhf audit`: verifies and exports the audit chain."""

import json
from pathlib import Path
from typing import Annotated

import typer

from rlhf_pipeline.cli.context import Workspace
from rlhf_pipeline.cli.tables import echo
from rlhf_pipeline.core.files import open_atomically
from rlhf_pipeline.reports.words import format_count

LINKS_AT_ONCE = 5_000

app = typer.Typer(
    help="The audit chain: who did what to what, each link with the hash of the previous one.",
    no_args_is_help=True,
)


@app.command("verify")
def verify() -> None:
    """Verify the whole chain and every vote against its link; name the first row that was
    changed.
    """
    n = Workspace.from_environment().store.audit.verify()
    echo(f"{format_count(n, 'link')}, chain intact")


@app.command("export")
def export(
    out: Annotated[
        Path | None, typer.Option(help="File to write; default <RLHF_HOME>/exports/audit.jsonl.")
    ] = None,
) -> None:
    """Write the chain as JSON lines, oldest first, so that it can be verified elsewhere."""
    workspace = Workspace.from_environment()
    path = out or workspace.settings.exports / "audit.jsonl"
    n = 0
    with open_atomically(path) as file:
        while links := workspace.store.audit.after(n, limit=LINKS_AT_ONCE):
            file.write(
                "".join(
                    json.dumps(link.model_dump(mode="json"), ensure_ascii=False) + "\n"
                    for link in links
                ).encode()
            )
            n = links[-1].seq
    echo(f"{format_count(n, 'link')} in {path}", err=not path.is_file())

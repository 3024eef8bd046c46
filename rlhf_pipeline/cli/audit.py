"""`rlhf audit`: verifies and exports the audit chain."""

import json
from pathlib import Path
from typing import Annotated

import typer

from rlhf_pipeline.cli.context import Workspace
from rlhf_pipeline.cli.tables import echo
from rlhf_pipeline.core.files import open_atomically
from rlhf_pipeline.reports.words import format_count
from rlhf_pipeline.store import anchors

LINKS_AT_ONCE = 5_000

app = typer.Typer(
    help="The audit chain: who did what to what, each link with the hash of the previous one.",
    no_args_is_help=True,
)


@app.command("verify")
def verify() -> None:
    """Verify the whole chain, every vote against its link and every anchor against the chain; name
    the first row that was changed.
    """
    workspace = Workspace.from_environment()
    dropped = anchors.read_anchors(workspace.settings.home / anchors.FILE)
    n = anchors.verify_with_anchors(workspace.store.audit, dropped)
    since = (
        f", also by {format_count(len(dropped), 'anchor')} since {dropped[0].day}"
        if dropped
        else "; no anchor yet (`rlhf serve` and housekeeping add one a day)"
    )
    echo(f"{format_count(n, 'link')}, chain intact{since}")


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

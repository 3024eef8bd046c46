"""`rlhf changes`: lists, records and retracts the changes of taste that every fit respects."""

from typing import Annotated

import typer

from rlhf_pipeline.cli.context import Workspace
from rlhf_pipeline.cli.parameters import AsJson, require_text
from rlhf_pipeline.cli.tables import echo, show, show_json
from rlhf_pipeline.core.records import LARGEST, TasteChange

app = typer.Typer(
    help="Changes of taste: votes cast before one weigh less in every later fit.",
    no_args_is_help=True,
)
ACTOR = "rlhf changes"


@app.command("list")
def list_changes(
    as_json: AsJson = False,
) -> None:
    """List every change: who recorded or retracted it, and why."""
    changes = Workspace.open().store.taste_changes.all()
    if as_json:
        show_json([change.model_dump(mode="json") for change in changes])
        return
    show(
        [_build_row(change) for change in changes],
        title=f"{len(changes)} changes of taste",
        empty="No change of taste is recorded: every vote counts alike.",
    )


@app.command("add")
def add_change(
    change_seq: Annotated[
        int, typer.Argument(min=1, max=LARGEST, help="Seq of the first vote of the new taste.")
    ],
    cause: Annotated[
        str, typer.Option(help="What changed; kept with the change.", callback=require_text)
    ],
    category: Annotated[
        str | None, typer.Option(help="The only category whose taste changed; default: all.")
    ] = None,
) -> None:
    """Record a change of taste that no detector reported, such as new guidelines."""
    added = Workspace.open().store.taste_changes.add(
        change_seq, cause=cause, category=category, actor=ACTOR
    )
    echo(
        f"change {added.change_id}: votes before {change_seq:,} count less in "
        f"{_format_scope(added)} from the next fit on"
    )


@app.command("retract")
def retract_change(
    change_id: Annotated[
        int, typer.Argument(min=1, max=LARGEST, help="Number of the change in `rlhf changes list`.")
    ],
    reason: Annotated[
        str,
        typer.Option(help="Why it was a false alarm; kept with the change.", callback=require_text),
    ],
) -> None:
    """Mark a change as a false alarm: later fits ignore it."""
    retracted = Workspace.open().store.taste_changes.retract(change_id, reason=reason, actor=ACTOR)
    echo(
        f"change {change_id} is retracted: votes before {retracted.change_seq:,} count in full "
        "again from the next fit on"
    )


def _build_row(change: TasteChange) -> dict[str, str]:
    retracted = (
        change.retracted_at
        and f"{change.retracted_at:%Y-%m-%d %H:%M} by {change.retracted_by}: "
        f"{change.retraction_reason}"
    )
    return {
        "change": str(change.change_id),
        "since vote": f"{change.change_seq:,}",
        "scope": _format_scope(change),
        "cause": change.cause,
        "decision": str(change.decision_id or "-"),
        "recorded": f"{change.recorded_at:%Y-%m-%d %H:%M} by {change.actor}",
        "retracted": retracted or "-",
    }


def _format_scope(change: TasteChange) -> str:
    return "all categories" if change.category is None else f"category {change.category}"

"""`rlhf comparisons`: offers comparisons to people and withdraws them."""

from collections.abc import Sequence
from datetime import datetime
from typing import Annotated

import typer

from rlhf_pipeline.cli.context import Workspace
from rlhf_pipeline.cli.tables import echo
from rlhf_pipeline.core.errors import ConfigurationError

ACTOR = "rlhf comparisons"

app = typer.Typer(help="Comparisons that are offered to people.", no_args_is_help=True)
Ids = Annotated[str | None, typer.Option(help="Comma-separated comparison ids.")]


@app.command("offer")
def offer(
    day: Annotated[
        datetime | None,
        typer.Option(
            formats=["%Y-%m-%d"],
            metavar="YYYY-MM-DD",
            help="All comparisons of a UTC day, including imported ones.",
        ),
    ] = None,
    all_unvoted: Annotated[bool, typer.Option("--all-unvoted", help="All without votes.")] = False,
    ids: Ids = None,
    overlap: Annotated[
        int | None,
        typer.Option(
            min=1,
            max=9,
            help="People who judge each comparison; default: the project's rule.",
        ),
    ] = None,
    annotator: Annotated[
        str | None,
        typer.Option(help="E-mail address of the only person to judge them; default: anyone."),
    ] = None,
    priority: Annotated[
        int, typer.Option(min=-1000, max=1000, help="Lower numbers are dealt first.")
    ] = 0,
) -> None:
    """Offer comparisons to people, without repeats and flagged ones. Repeating the command adds
    nothing; a higher overlap adds judgements.
    """
    if sum((day is not None, all_unvoted, ids is not None)) != 1:
        raise ConfigurationError(
            "Which comparisons? Give exactly one of --day, --all-unvoted and --ids."
        )
    if annotator is not None and overlap is not None:
        raise ConfigurationError(
            "--overlap and --annotator cannot be combined: the one sets how many people judge each "
            "comparison, the other names one person."
        )
    workspace = Workspace.open_current()
    of_day = None if day is None else day.date().isoformat()
    wanted = (
        workspace.store.comparisons.find_offerable_ids(day=of_day, unvoted_only=all_unvoted)
        if ids is None
        else _split_ids(ids)
    )
    if annotator is not None:
        echo(_offer_to_person(workspace, annotator, wanted, priority=priority))
    else:
        echo(offer_to_people(workspace, wanted, overlap=overlap, priority=priority))


@app.command("withdraw")
def withdraw(
    ids: Annotated[str, typer.Option(help="Comma-separated comparison ids.", show_default=False)],
) -> None:
    """Withdraw open judgements; leased cards and judgements stay."""
    workspace = Workspace.open_current()
    n = workspace.store.cards.withdraw(_split_ids(ids), actor=ACTOR)
    echo(f"{n:,} open judgements withdrawn")


def offer_to_people(
    workspace: Workspace,
    comparison_ids: Sequence[str],
    *,
    overlap: int | None = None,
    priority: int = 0,
) -> str:
    """Offer them and describe what is new."""
    people = overlap or workspace.store.rules.latest()[1].overlap
    n = workspace.store.cards.offer(comparison_ids, overlap=people, priority=priority, actor=ACTOR)
    return (
        f"{len(comparison_ids):,} comparisons offered to {people} "
        f"{'person' if people == 1 else 'people'} each: {n:,} new judgements wanted"
    )


def _offer_to_person(
    workspace: Workspace, email: str, comparison_ids: Sequence[str], *, priority: int
) -> str:
    """Offer them to one person and describe what is new; refuse a program."""
    from rlhf_pipeline.cli.vote import find_voter
    from rlhf_pipeline.web.comparisons.offers import may_be_asked

    user = find_voter(workspace, email)
    if not may_be_asked(user):
        raise ConfigurationError(
            f"{user.email} is a program, and cards are dealt to people. Name a person."
        )
    n = workspace.store.cards.ask(user.user_id, comparison_ids, priority=priority, actor=ACTOR)
    return (
        f"{len(comparison_ids):,} comparisons offered to {user.email}: {n:,} new judgements wanted"
    )


def _split_ids(ids: str) -> list[str]:
    found = [part.strip() for part in ids.split(",") if part.strip()]
    if not found:
        raise ConfigurationError("--ids names no comparison. Write comma-separated ids.")
    return found

"""`rlhf comparisons`: which comparisons people are asked about. Knows ids and days; the store
deals.
"""

from collections.abc import Sequence
from datetime import datetime
from typing import Annotated

import typer

from rlhf_pipeline.cli.context import Workspace
from rlhf_pipeline.cli.tables import echo
from rlhf_pipeline.cli.vote import find_voter
from rlhf_pipeline.errors import ConfigurationError
from rlhf_pipeline.web.comparisons.offers import may_be_asked

ACTOR = "rlhf comparisons"

app = typer.Typer(help="What people are asked to judge.", no_args_is_help=True)
Ids = Annotated[str | None, typer.Option(help="Comparison ids, with commas between them.")]


@app.callback()
def group() -> None:
    """What people are asked to judge."""


@app.command("offer")
def offer(
    day: Annotated[
        datetime | None,
        typer.Option(
            formats=["%Y-%m-%d"],
            metavar="YYYY-MM-DD",
            help="All comparisons of a UTC day, imported ones too.",
        ),
    ] = None,
    all_unvoted: Annotated[
        bool, typer.Option("--all-unvoted", help="All that nobody judged yet.")
    ] = False,
    ids: Ids = None,
    overlap: Annotated[
        int | None,
        typer.Option(min=1, max=9, help="People who judge each; default as the rules say."),
    ] = None,
    annotator: Annotated[
        str | None,
        typer.Option(
            help="E-mail address of the one person who is to judge them; default anybody."
        ),
    ] = None,
    priority: Annotated[int, typer.Option(min=-1000, max=1000, help="Lower is dealt first.")] = 0,
) -> None:
    """Ask people about comparisons. Repeating it adds nothing; more overlap adds judgements;
    repeats and flagged ones are left out.
    """
    if sum((day is not None, all_unvoted, ids is not None)) != 1:
        raise ConfigurationError(
            "Say which comparisons: exactly one of --day, --all-unvoted and --ids."
        )
    if annotator is not None and overlap is not None:
        raise ConfigurationError(
            "--overlap is how many people judge each, and --annotator names one. Leave one of them "
            "out."
        )
    workspace = Workspace.from_environment()
    workspace.store.migrate()
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
    ids: Annotated[
        str, typer.Option(help="Comparison ids, with commas between them.", show_default=False)
    ],
) -> None:
    """Withdraw open slots; leased cards and judgements stay."""
    workspace = Workspace.from_environment()
    workspace.store.migrate()
    n = workspace.store.assignments.withdraw(_split_ids(ids), actor=ACTOR)
    echo(f"{n:,} judgements taken back")


def offer_to_people(
    workspace: Workspace,
    comparison_ids: Sequence[str],
    *,
    overlap: int | None = None,
    priority: int = 0,
) -> str:
    """Offer them; in words, what is new."""
    people = overlap or workspace.store.rules.latest()[1].overlap
    n = workspace.store.assignments.offer(
        comparison_ids, overlap=people, priority=priority, actor=ACTOR
    )
    return (
        f"{len(comparison_ids):,} comparisons offered to {people} "
        f"{'person' if people == 1 else 'people'} each: {n:,} new judgements wanted"
    )


def _offer_to_person(
    workspace: Workspace, email: str, comparison_ids: Sequence[str], *, priority: int
) -> str:
    """Offer them to one person; in words, what is new. Raises ConfigurationError for whom no card
    is dealt.
    """
    user = find_voter(workspace, email)
    if not may_be_asked(user):
        raise ConfigurationError(
            f"{user.email} is a program, and cards are dealt to people. Name a person."
        )
    n = workspace.store.assignments.ask(
        user.user_id, comparison_ids, priority=priority, actor=ACTOR
    )
    return (
        f"{len(comparison_ids):,} comparisons offered to {user.email}: {n:,} new judgements wanted"
    )


def _split_ids(ids: str) -> list[str]:
    found = [part.strip() for part in ids.split(",") if part.strip()]
    if not found:
        raise ConfigurationError("--ids names no comparison. Write ids with commas between them.")
    return found

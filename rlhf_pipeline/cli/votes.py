"""`rlhf votes`: which of a day's comparisons people judge and which the reward model answers. Knows the rule's parameters."""

from datetime import UTC, datetime
from typing import Annotated

import typer

from rlhf_pipeline.cli.context import Workspace
from rlhf_pipeline.comparisons.routing import RoutingParams, counts, route, send
from rlhf_pipeline.errors import NotEnoughData

app = typer.Typer(help="Votes of people and of the reward model.", no_args_is_help=True)
FIELDS = RoutingParams.model_fields


@app.callback()
def group() -> None:
    """Votes of people and of the reward model."""


@app.command("route")
def route_day(
    day: Annotated[
        datetime | None, typer.Option(formats=["%Y-%m-%d"], metavar="YYYY-MM-DD", help="UTC day of the comparisons; default today.")
    ] = None,
    human_feedback_ratio: Annotated[float, typer.Option(min=0, max=1, help=FIELDS["human_feedback_ratio"].description)] = 1.0,
    confidence_threshold: Annotated[float, typer.Option(min=0.5, max=1, help=FIELDS["confidence_threshold"].description)] = 0.8,
    seed: Annotated[int, typer.Option(min=0, help=FIELDS["routing_seed"].description)] = 0,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Only say where they would go.")] = False,
) -> None:
    """Offer people their share of a day, least confident first; let the reward model answer what it is sure of; list what stays open."""
    workspace = Workspace.here()
    store = workspace.store
    store.migrate()
    name = (day or datetime.now(UTC)).date().isoformat()
    published = store.comparisons.for_days([name])
    if published.empty:
        raise NotEnoughData(f"No comparisons were made for {name}. Run the `collection` job for that day, or name another with --day.")
    params = RoutingParams(human_feedback_ratio=human_feedback_ratio, confidence_threshold=confidence_threshold, routing_seed=seed)
    routes = route(published, store.predictions.of(published["comparison_id"].tolist()), params)
    overlap = store.rules.latest()[1].overlap
    told = counts(routes) if dry_run else send(routes, store.assignments, store.votes, overlap=overlap)
    typer.echo(
        f"{told.n} comparisons of {name}: {told.n_people} for people ({told.n_unsure} unsure, {told.n_checks} checks), "
        f"{told.n_machine} answered by the reward model, {told.n_open} open"
    )
    if not dry_run:
        typer.echo(f"{told.n_slots} new judgements wanted, {told.n_machine_votes} new machine votes")
    for comparison_id, confidence in routes.loc[routes["route"] == "open", ["comparison_id", "confidence"]].itertuples(index=False):
        typer.echo(f"open  {comparison_id}  confidence {confidence:.3f}")

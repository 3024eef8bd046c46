"""`rlhf drift clusters` and `rlhf drift slices`: where the reward model errs, and offers of it."""

from datetime import datetime
from typing import Annotated

import typer

from rlhf_pipeline.cli.comparisons import offer_to_people
from rlhf_pipeline.cli.exports import open_workspace
from rlhf_pipeline.cli.parameters import AsJson, DayRange, FirstDay, LastDay
from rlhf_pipeline.cli.tables import echo, show, show_json
from rlhf_pipeline.drift.slices import error_slices
from rlhf_pipeline.errors import ConfigurationError, NotEnoughData
from rlhf_pipeline.records import ErrorSlice, Interval, PromptCluster
from rlhf_pipeline.votes import noise_ceiling_or_repeats

Day = Annotated[
    datetime | None,
    typer.Option(
        formats=["%Y-%m-%d"],
        metavar="YYYY-MM-DD",
        help="UTC day; default: the last one with clusters.",
    ),
]


def show_clusters(
    day: Day = None,
    offer: Annotated[
        str | None,
        typer.Option(
            metavar="CLUSTER",
            help="Ask people to judge the comparisons of this cluster again.",
        ),
    ] = None,
    votes: Annotated[
        int | None,
        typer.Option(
            min=1,
            max=9,
            help="With --offer: judgements wanted of each comparison in all; default: one more "
            "than the project's rule.",
        ),
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Show the clusters of prompts that a day's drift report found, failing ones first; or offer
    one to people.
    """
    if votes is not None and offer is None:
        raise ConfigurationError("--votes belongs to --offer. Name the cluster to offer.")
    workspace = open_workspace()
    workspace.store.migrate()
    wanted = None if day is None else day.date().isoformat()
    if offer is not None:
        _, found = workspace.files.find_cluster(offer, wanted)
        wanted_votes = votes or min(9, workspace.store.rules.latest()[1].overlap + 1)
        echo(f"{offer}, {found.name}:", err=as_json)
        echo(offer_to_people(workspace, found.comparison_ids, overlap=wanted_votes))
        return
    days = [one for one in workspace.files.cluster_days() if wanted in (None, one)]
    read = workspace.files.read_clusters(days[-1:])
    if not read:
        raise NotEnoughData(
            f"There are no clusters{f' of {wanted}' if wanted else ''}. The page of a day says why "
            "it has none: rlhf export drift-report."
        )
    clusters = next(iter(read.values()))
    if as_json:
        show_json(clusters.model_dump(mode="json"))
        return
    show(
        [_build_cluster(one, clusters.noise_ceiling) for one in clusters.clusters],
        title=f"clusters of {clusters.n_current:,} prompts judged on {clusters.day}, "
        f"{clusters.model_version}",
        empty="",
    )


def show_slices(
    day: Day = None,
    first: FirstDay = None,
    last: LastDay = None,
    as_json: AsJson = False,
) -> None:
    """Compare error rates by category, source, length gap, annotator and model, over one day or
    several; without days, over all.
    """
    wanted = DayRange.from_options(day, first, last)
    workspace = open_workspace()
    workspace.store.migrate()
    days = [one for one in workspace.files.days("reflection_log") if one in wanted]
    log = workspace.files.read_days("reflection_log", days)
    comparisons = workspace.store.comparisons.with_ids(log["comparison_id"].unique().tolist())
    slices = error_slices(log, comparisons)
    ceiling = noise_ceiling_or_repeats(workspace.files.read_days("votes", days))
    if as_json:
        show_json(
            {
                "noise_ceiling": ceiling and ceiling.model_dump(mode="json"),
                "slices": [one.model_dump(mode="json") for one in slices],
            }
        )
        return
    measured = [one for one in slices if one.error_rate is not None]
    show(
        [_build_slice(one, ceiling) for one in measured],
        title=f"{len(measured)} slices of predicted votes, {len(slices) - len(measured)} too "
        "small ones withheld",
        empty="No grouping has two slices with enough judged comparisons on these days.",
    )


def _build_cluster(one: PromptCluster, ceiling: Interval | None) -> dict[str, str]:
    changes = [
        *(["failing"] if one.is_failing else []),
        *(["got worse"] if one.is_worse else []),
        *([one.change] if one.change != "steady" else []),
    ]
    return {
        "cluster": one.cluster_id,
        "words": one.name,
        "prompts": f"{one.n_prompts:,}",
        "error rate": _format_interval(one.error_current),
        "best reachable": format_best_error(ceiling),
        "times the rest": _format_interval(one.lift),
        "p": "-" if one.p_lift is None else f"{one.p_lift:.3g}",
        "change": ", ".join(changes) or "steady",
        "days": str(max(1, len(one.trend))),
        "example": one.examples[0] if one.examples else "-",
    }


def _build_slice(one: ErrorSlice, ceiling: Interval | None) -> dict[str, str]:
    return {
        "slice": f"{one.by}: {one.name}",
        "comparisons": f"{one.n:,}",
        "error rate": _format_interval(one.error_rate),
        "best reachable": format_best_error(ceiling),
        "times the rest": _format_interval(one.lift),
        "p": "-" if one.p_value is None else f"{one.p_value:.3g}",
        "": "failing" if one.is_failing else "",
    }


def format_best_error(ceiling: Interval | None) -> str:
    """The error rate that no model can beat, from the noise ceiling of the votes."""
    if ceiling is None:
        return "unknown"
    basis = "" if ceiling.basis is None else f" from {ceiling.basis}"
    return f"{_format_interval(ceiling.complement())}{basis}"


def _format_interval(interval: Interval | None) -> str:
    if interval is None:
        return "-"
    return f"{interval.value:.2f} [{interval.low:.2f}, {interval.high:.2f}]"

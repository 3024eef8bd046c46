"""`rlhf metrics`: the figures of a project by day, as a table, JSON or CSV."""

import csv
import io
import json
from collections.abc import Sequence
from datetime import date, datetime
from enum import StrEnum
from typing import Annotated

import typer

from rlhf_pipeline.cli.context import Workspace
from rlhf_pipeline.cli.tables import echo, show, show_json
from rlhf_pipeline.datasets.formats.csv import protect_cell
from rlhf_pipeline.metric_catalogue import (
    METRICS,
    let_silence_grow,
    parse_labels,
    require_metrics,
)
from rlhf_pipeline.monitoring import MetricPoint
from rlhf_pipeline.store import Store


class OutputFormat(StrEnum):
    TABLE = "table"
    JSON = "json"
    CSV = "csv"


def metrics(
    names: Annotated[
        list[str] | None,
        typer.Argument(metavar="[NAME]...", help="Metrics; default: all."),
    ] = None,
    since: Annotated[
        datetime | None,
        typer.Option(formats=["%Y-%m-%d"], metavar="YYYY-MM-DD", help="First UTC day."),
    ] = None,
    until: Annotated[
        datetime | None,
        typer.Option(formats=["%Y-%m-%d"], metavar="YYYY-MM-DD", help="Last UTC day."),
    ] = None,
    labels: Annotated[
        list[str] | None,
        typer.Option(
            "--labels", metavar="NAME=VALUE", help="Only points with this label. Repeatable."
        ),
    ] = None,
    output: Annotated[
        OutputFormat, typer.Option("--format", help="Output format.")
    ] = OutputFormat.TABLE,
) -> None:
    """Show the newest figure of every metric; given names or days, show all their points, oldest
    first.
    """
    wanted = [metric.name for metric in require_metrics(names or METRICS)]
    needed = parse_labels(labels or ())
    store = Workspace.open_current().store
    if names or since or until:
        points = store.metric_points.read(
            wanted, since=_to_day(since), until=_to_day(until), labels=needed
        )
    else:
        points = _read_latest(store, wanted, needed)
    if output is OutputFormat.JSON:
        show_json([point.model_dump(mode="json") for point in points])
    elif output is OutputFormat.CSV:
        echo(_to_csv(points), nl=False)
    else:
        show(
            [_build_row(point) for point in points],
            title=f"{len(points)} figure{'s' * (len(points) != 1)}, days in UTC",
            empty="Nothing has been measured yet. `rlhf loop` and the daemon measure on every "
            "tick, runs when they end.",
        )


def _read_latest(store: Store, names: Sequence[str], labels: dict[str, str]) -> list[MetricPoint]:
    newest = let_silence_grow(store.metric_points.latest(names), store.database.clock.now())
    return [point for point in newest if labels.items() <= point.labels.items()]


def _to_day(at: datetime | None) -> date | None:
    return None if at is None else at.date()


def _build_row(point: MetricPoint) -> dict[str, str]:
    return {
        "metric": point.name,
        "labels": ", ".join(f"{name}={value}" for name, value in point.labels.items()),
        "day": point.day.isoformat(),
        "value": _format_value(point),
        "unit": METRICS[point.name].unit,
        "n": f"{point.n:,}",
        "measured": f"{point.measured_at:%Y-%m-%d %H:%M}",
    }


def _format_value(point: MetricPoint) -> str:
    if point.value is None:
        return "-"
    ends = "" if point.low is None else f" [{point.low:.4g}, {point.high:.4g}]"
    return f"{point.value:.4g}{ends}"


def _to_csv(points: Sequence[MetricPoint]) -> str:
    """A column per field of the points; labels as JSON, missing figures empty."""
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    fields = list(MetricPoint.model_fields)
    writer.writerow(fields)
    for point in points:
        plain = point.model_dump(mode="json")
        plain["labels"] = protect_cell(json.dumps(plain["labels"], ensure_ascii=False))
        writer.writerow(["" if plain[name] is None else plain[name] for name in fields])
    return text.getvalue()

"""`rlhf drift`: shows the stored drift reports and clusters of errors in the terminal."""

import json
from collections.abc import Iterator, Mapping, Sequence
from datetime import datetime
from typing import Annotated, Any, Literal

import pandas as pd
import typer

from rlhf_pipeline.cli.exports import explain_missing_report, open_workspace
from rlhf_pipeline.cli.parameters import DayRange, FirstDay, LastDay
from rlhf_pipeline.cli.tables import echo, show, show_json
from rlhf_pipeline.core.records import DriftEvent, Interval, TriggerDecision, Verdict
from rlhf_pipeline.reports.words import format_count
from rlhf_pipeline.watch.drift.cluster_history import DayClusters

app = typer.Typer(
    help="Drift reports and clusters of errors in the terminal.", no_args_is_help=True
)
# The worst last: a space has the worst verdict of its tests.
VERDICTS = (Verdict.INSUFFICIENT, Verdict.STABLE, Verdict.WARNING, Verdict.DRIFT)


@app.command("analyze")
def analyze(
    day: Annotated[
        datetime | None,
        typer.Option(formats=["%Y-%m-%d"], metavar="YYYY-MM-DD", help="One UTC day."),
    ] = None,
    first: FirstDay = None,
    last: LastDay = None,
    mode: Annotated[
        Literal["summary", "detailed"],
        typer.Option(help="summary: a line per day. detailed: every test with its evidence too."),
    ] = "summary",
    as_json: Annotated[bool, typer.Option("--json", help="Print every test as JSON.")] = False,
) -> None:
    """Show the verdict of each day by space, what confirmed it, and the events of detectors.

    Reads the stored reports: nothing is computed again. Without days, all that have a report.
    """
    day_range = DayRange.from_options(day, first, last)
    workspace = open_workspace()
    files = workspace.files
    days = [d for d in files.days("drift_report") if d in day_range]
    if not days:
        if as_json:
            show_json({"tests": [], "events": [], "clusters": []})
        echo(explain_missing_report(files, None if day is None else f"{day:%Y-%m-%d}"), err=as_json)
        return
    rows = files.read_days("drift_report", days)
    events = workspace.store.events.for_days(days)
    clusters = list(files.read_reports("clusters", days, DayClusters).values())
    if as_json:
        show_json(
            {
                "tests": [_build_test(row) for row in rows.to_dict("records")],
                "events": [event.model_dump(mode="json") for event in events],
                "clusters": [day.model_dump(mode="json") for day in clusters],
            }
        )
        return
    show(
        [_build_day(day, of_day) for day, of_day in rows.groupby("day")],
        title=f"drift reports of {workspace.settings.project}, {days[0]} to {days[-1]}",
        empty="",
    )
    show(
        list(_build_events(events, workspace.store.decisions.all())),
        title=f"{format_count(len(events), 'event')} of detectors and calibration tests",
        empty="No detector and no calibration test reported a change on these days.",
    )
    is_detailed = mode == "detailed"
    table_rows = [row for day in clusters for row in _build_clusters(day, is_detailed=is_detailed)]
    show(
        table_rows,
        title="clusters of prompts" if is_detailed else "clusters of prompts that changed or fail",
        empty=f"No cluster of prompts changed or fails on {len(clusters)} days with clusters."
        if clusters
        else "These days have no clusters of prompts.",
    )
    if is_detailed:
        for line in _describe_tests(rows):
            echo(line)


def _build_day(day: object, rows: pd.DataFrame) -> dict[str, str]:
    """One line: the verdict of the day, what said drift, and the spaces by their worst verdict."""
    overall = rows[rows["space"] == "overall"].iloc[0]
    evidence = json.loads(overall["evidence"])
    sources = evidence.get("says_drift", [])
    needed = f"{len(sources)}, {evidence.get('confirmations', '?')} needed"
    spaces = rows[rows["space"] != "overall"].groupby("space")["verdict"].agg(_find_worst)
    return {
        "day": str(day),
        "verdict": str(overall["verdict"]),
        "votes": f"{overall['n_current']:,}",
        "confirmed by": f"{needed}: {', '.join(sources)}" if sources else needed,
        **{
            f"{verdict} in": "all"
            if (spaces == verdict).all()
            else ", ".join(spaces.index[spaces == verdict]) or "-"
            for verdict in reversed(VERDICTS)
        },
    }


def _find_worst(verdicts: pd.Series) -> str:
    return str(max((Verdict(verdict) for verdict in verdicts), key=VERDICTS.index))


def _build_events(
    events: Sequence[DriftEvent], decisions: Sequence[TriggerDecision]
) -> Iterator[dict[str, str]]:
    decided = {
        event_id: f"{decision.action} {decision.decision_id}"
        for decision in decisions
        for event_id in decision.event_ids
    }
    for event in events:
        waits = "replayed" if event.is_replayed else "waits"
        yield {
            "day": event.day.isoformat(),
            "vote": f"{event.seq:,}",
            "detector": event.detector,
            "stream": event.stream,
            "model": event.model_version,
            "change dated at vote": "-" if event.change_seq is None else f"{event.change_seq:,}",
            "decision": decided.get(event.event_id, waits),
        }


def _build_clusters(day: DayClusters, *, is_detailed: bool) -> Iterator[dict[str, str]]:
    for cluster in day.clusters:
        changes: list[str] = [cluster.change] if cluster.change != "steady" else []
        changes += ["got worse"] if cluster.is_worse else []
        changes += ["fails"] if cluster.is_failing else []
        if changes or is_detailed:
            yield {
                "day": day.day,
                "cluster": cluster.cluster_id,
                "words": cluster.name,
                "prompts": f"{cluster.n_prompts:,}",
                "share": _format_change(cluster.share_reference, cluster.share_current),
                "error rate": _format_change(cluster.error_reference, cluster.error_current),
                "best reachable": "unknown"
                if day.noise_ceiling is None
                else str(day.noise_ceiling.complement()),
                "lift": "-" if cluster.lift is None else str(cluster.lift),
                "change": ", ".join(changes) or "steady",
            }


def _format_change(before: Interval | None, now: Interval | None) -> str:
    """From the reference to the day; a dash for too few prompts."""
    return " → ".join(
        "-" if estimate is None else f"{estimate.value:.3f}" for estimate in (before, now)
    )


def _describe_tests(rows: pd.DataFrame) -> Iterator[str]:
    """Every row of the reports, with its evidence below it."""
    for row in rows.to_dict("records"):
        test = _build_test(row)
        figures = [
            f"{name.replace('_', ' ')} {test[name]:.4g}"
            for name in ("statistic", "threshold", "p_value")
            if test[name] is not None
        ]
        counts = f"{row['n_current']:,} now, {row['n_reference']:,} in the reference"
        yield (
            f"{row['day']}  {row['space']}/{row['detector']}: {row['verdict']}"
            f"  ({', '.join([*figures, counts])})"
        )
        for name, value in test["evidence"].items():
            yield f"    {name}: {value if isinstance(value, str) else json.dumps(value)}"


def _build_test(row: Mapping[Any, Any]) -> dict[str, Any]:
    values = {str(name): None if pd.isna(value) else value for name, value in row.items()}
    return {**values, "evidence": json.loads(row["evidence"])}

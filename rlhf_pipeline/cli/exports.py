"""`rlhf export`: writes comparisons and votes in the preference format, and the loop's logs."""

import json
from collections.abc import Iterable, Iterator
from datetime import datetime
from pathlib import Path
from typing import Annotated, Any

import pandas as pd
import typer

from rlhf_pipeline.cli.context import Workspace
from rlhf_pipeline.cli.tables import build_records, echo
from rlhf_pipeline.cli.training_files import write_lines
from rlhf_pipeline.core.artefacts import Artefacts
from rlhf_pipeline.core.config import HomeFacts
from rlhf_pipeline.core.errors import ConfigurationError, NotEnoughData
from rlhf_pipeline.core.files import open_atomically, write_atomically
from rlhf_pipeline.core.frames import EXPORTED_VOTES
from rlhf_pipeline.feedback.datasets.argilla import RECORD_ROWS, record_rows
from rlhf_pipeline.feedback.datasets.formats import format_for
from rlhf_pipeline.feedback.datasets.preference import KINDS, comparison_rows, tuple_rows, vote_rows
from rlhf_pipeline.feedback.votes.counting import standing_votes
from rlhf_pipeline.feedback.votes.preference_pairs import training_rows
from rlhf_pipeline.learn import calibration
from rlhf_pipeline.reports.words import format_count
from rlhf_pipeline.watch.reflection import reflection_rows

app = typer.Typer(
    help="Write comparisons, votes and the loop's logs as files.", no_args_is_help=True
)
Form = Annotated[
    str | None,
    typer.Option(
        "--format",
        help="jsonl, csv, parquet, or argilla for comparisons; default by the suffix of --out, "
        "else jsonl.",
    ),
]
Superseded = Annotated[
    bool,
    typer.Option(
        "--superseded",
        help="Include votes that a later vote of the annotator replaced, marked as superseded.",
    ),
]
Out = Annotated[Path | None, typer.Option(help="File to write; default below <RLHF_HOME>/exports.")]


@app.command("prompts")
def prompts(out: Out = None) -> None:
    """All prompts: generated_prompts.jsonl."""
    _export_days("prompts", "generated_prompts.jsonl", out)


@app.command("completions")
def completions(out: Out = None) -> None:
    """All completions with model, parameters, latency and tokens: raw_completions_log.jsonl."""
    _export_days("completions", "raw_completions_log.jsonl", out)


@app.command("comparisons")
def comparisons(format: Form = None, out: Out = None) -> None:
    """All comparisons, made here or imported, in the preference format, or as Argilla records with
    their votes.
    """
    workspace = open_workspace()
    if format_for(out, format).name == "argilla":
        _write_records(workspace, out)
        return
    rows = (
        comparison_rows(batch, workspace.settings.project)
        for batch in workspace.store.comparisons.stream()
    )
    _write_rows("comparisons", rows, "comparison", workspace, format, out)


@app.command("votes")
def votes(format: Form = None, out: Out = None, superseded: Superseded = False) -> None:
    """All votes in the order they were cast, including repeat passes and skips, in the preference
    format.
    """
    write_votes(open_workspace(), out, format, superseded=superseded)


@app.command("tuples")
def tuples(format: Form = None, out: Out = None) -> None:
    """(prompt, a, b, preferred) of every vote that counts for training, including ties, in the
    preference format.
    """
    workspace = open_workspace()
    _write_rows("tuples", _read_tuples(workspace), "tuple", workspace, format, out)


@app.command("training-data")
def training_data(out: Out = None) -> None:
    """Preference pairs as the reward model is trained on them:
    vote_predictor_training_data.jsonl.
    """
    workspace = open_workspace()
    rows = training_rows(_read_pairs(workspace.files))
    _write_lines(rows, out or workspace.settings.exports / "vote_predictor_training_data.jsonl")


@app.command("reflection-log")
def reflection_log(out: Out = None) -> None:
    """Every prediction with its vote: meta_reflection_log.jsonl."""
    workspace = open_workspace()
    log = _read_all_days(workspace.files, "reflection_log")
    votes = workspace.files.read_days("votes", workspace.files.days("votes"))
    superseded = votes[~votes["vote_id"].isin(standing_votes(votes)["vote_id"])]["vote_id"]
    rows = reflection_rows(log[~log["vote_id"].isin(superseded)])
    _write_lines(rows, out or workspace.settings.exports / "meta_reflection_log.jsonl")


@app.command("calibration-log")
def calibration_log(out: Out = None) -> None:
    """Every calibration, oldest first, including imported reports: calibration_log.json."""
    workspace = open_workspace()
    log = calibration.calibration_log(workspace.store.calibrations.whole_log())
    path = out or workspace.settings.exports / "calibration_log.json"
    if not log:
        raise NotEnoughData(
            "No reward model has been calibrated yet. Run the `learning` job, or `make demo`."
        )
    write_atomically(path, (json.dumps(log, indent=1, ensure_ascii=False) + "\n").encode())
    echo(f"{format_count(len(log), 'calibration')} in {path}")


@app.command("drift-report")
def drift_report(
    day: Annotated[
        datetime | None,
        typer.Option(
            formats=["%Y-%m-%d"],
            metavar="YYYY-MM-DD",
            help="UTC day; default: the last one with a report.",
        ),
    ] = None,
    out: Out = None,
) -> None:
    """The drift report of a day as one HTML file that opens offline: drift_report_<day>.html."""
    workspace = open_workspace()
    last = next(reversed(workspace.files.report_days("drift")), None)
    report_day = day.date().isoformat() if day else last
    page = workspace.files.read_page("drift", report_day) if report_day else None
    if page is None:
        raise NotEnoughData(explain_missing_report(workspace.files, report_day))
    path = out or workspace.settings.exports / f"drift_report_{report_day}.html"
    write_atomically(path, page)
    echo(f"Drift report of {report_day} in {path}", err=not path.is_file())


def explain_missing_report(files: Artefacts, day: str | None) -> str:
    """How to make the page that is missing."""
    days = files.report_days("drift")
    there = f"There are {len(days)}, from {days[0]} to {days[-1]}." if days else ""
    return (
        f"No drift report{f' of {day}' if day else ''} has been made yet. Run the `feedback` job "
        f"for a day with votes, or `make demo`. {there}"
    )


def write_votes(
    workspace: Workspace, out: Path | None, format: str | None = None, *, superseded: bool = False
) -> None:
    """All votes of the project as a file; see `rlhf export votes`."""
    rows = (vote_rows(batch, superseded=superseded) for batch in _iter_votes(workspace))
    _write_rows("votes", rows, "vote", workspace, format, out)


def open_workspace() -> Workspace:
    """The home of the environment, even one that was never initialised and only saw an import."""
    workspace = Workspace.from_environment()
    # a home that only ever saw an import has facts and no Dagster
    if HomeFacts.load(workspace.settings.home) is None:
        workspace.require_initialised()
    return workspace


def _iter_votes(workspace: Workspace) -> Iterator[pd.DataFrame]:
    return workspace.store.votes.iter_log(schema=EXPORTED_VOTES, batch_rows=5_000)


def _read_tuples(workspace: Workspace) -> Iterator[pd.DataFrame]:
    for batch in _iter_votes(workspace):
        comparisons = workspace.store.comparisons.with_ids(batch["comparison_id"].tolist())
        yield tuple_rows(batch, comparisons, workspace.settings.project)


def _write_records(workspace: Workspace, out: Path | None) -> None:
    form, store = format_for(name="argilla"), workspace.store
    path = out or workspace.settings.exports / f"comparisons{form.suffix}"

    def batches() -> Iterator[pd.DataFrame]:
        for batch in store.comparisons.stream():
            votes = store.votes.log(
                comparison_ids=batch["comparison_id"].tolist(), schema=EXPORTED_VOTES
            )
            yield record_rows(comparison_rows(batch, workspace.settings.project), votes)

    with open_atomically(path) as file:
        n = form.write(batches(), RECORD_ROWS, file)
    echo(f"{format_count(n, 'record')} in {path}", err=not path.is_file())


def _write_rows(
    noun: str,
    rows: Iterable[pd.DataFrame],
    kind: str,
    workspace: Workspace,
    name: str | None,
    out: Path | None,
) -> None:
    form = format_for(out, name)
    if form.name == "argilla":
        raise ConfigurationError(
            f"Argilla's records hold comparisons together with their votes, not {noun}: `rlhf "
            "export comparisons --format argilla`."
        )
    path = out or workspace.settings.exports / f"{noun}{form.suffix}"
    with open_atomically(path) as file:
        n = form.write(rows, KINDS[kind], file)
    echo(f"{n:,} {noun} in {path}", err=not path.is_file())  # not into what is piped onwards


def _read_all_days(files: Artefacts, stage: str) -> pd.DataFrame:
    days = files.days(stage)
    if not days:
        raise NotEnoughData(
            f"No {stage} have been made yet. Materialise them in Dagster, or run `make demo`."
        )
    return files.read_days(stage, days)


def _read_pairs(files: Artefacts) -> pd.DataFrame:
    if not files.path("preference_pairs").exists():
        raise NotEnoughData(
            "No preference_pairs have been made yet. Run the `learning` job, materialise them in "
            "Dagster, or run `make demo`."
        )
    return files.read_frame("preference_pairs")


def _export_days(stage: str, name: str, out: Path | None) -> None:
    workspace = open_workspace()
    frame = _read_all_days(workspace.files, stage)
    _write_lines(build_records(frame), out or workspace.settings.exports / name)


def _write_lines(rows: Iterable[dict[str, Any]], path: Path) -> None:
    echo(f"{write_lines(path, rows)} rows in {path}")

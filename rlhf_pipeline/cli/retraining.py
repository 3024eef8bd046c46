"""`rlhf retraining`: the retraining set as a file."""

import json
from pathlib import Path
from typing import Annotated

import typer

from rlhf_pipeline.cli.exports import open_workspace
from rlhf_pipeline.cli.tables import echo
from rlhf_pipeline.cli.training_files import TrainingFiles, write_lines
from rlhf_pipeline.core.errors import MissingPartition
from rlhf_pipeline.core.frames import frame_hash
from rlhf_pipeline.feedback.votes.preference_pairs import write_trl_texts
from rlhf_pipeline.improve.retraining.curriculum import order_easy_to_hard, take_exactly
from rlhf_pipeline.reports.words import format_count

app = typer.Typer(help="The retraining set as a file.", no_args_is_help=True)
COLUMNS = ("prompt", "chosen", "rejected", "origin", "weight", "difficulty", "reason")


@app.command("prepare")
def prepare(
    rows: Annotated[
        int | None,
        typer.Option(min=1, help="Exactly that many rows, the most informative; default all."),
    ] = None,
    version: Annotated[
        str | None, typer.Option(help="Version of the set: its hash; default the last one.")
    ] = None,
    out: Annotated[
        Path | None,
        typer.Option(help="Default <RLHF_HOME>/data/vote_predictor_retrain_data.jsonl."),
    ] = None,
) -> None:
    """Write the rows of a retraining set from easy to hard, one JSON object a line, with origin,
    weight, reason and the version of the set.
    """
    workspace = open_workspace()
    versions = workspace.files.days("retraining_set")
    if version is not None and version not in versions:
        raise MissingPartition(
            f"There is no retraining set {version!r}. Known: {', '.join(versions) or 'none'}."
        )
    frame = workspace.files.read_frame("retraining_set", version)
    chosen = order_easy_to_hard(frame) if rows is None else take_exactly(frame, rows)
    label = {"dataset_version": version or frame_hash(frame)}
    lines = [row | label for row in json.loads(chosen[list(COLUMNS)].to_json(orient="records"))]
    path = out or TrainingFiles(workspace.settings.home).retraining_data
    n = write_lines(path, write_trl_texts(lines))
    echo(f"{format_count(n, 'row')} of retraining set {label['dataset_version'][:12]} in {path}")

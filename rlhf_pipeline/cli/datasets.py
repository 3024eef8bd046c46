"""`rlhf datasets`: lists, builds, freezes and exports curated data sets."""

import json
from pathlib import Path
from typing import Annotated, TypeVar

import typer
from pydantic import BaseModel, ValidationError

from rlhf_pipeline.cli.context import Workspace
from rlhf_pipeline.cli.tables import echo, show
from rlhf_pipeline.core.api_types.base import MOST_LISTED
from rlhf_pipeline.core.api_types.filters import DatasetFilter
from rlhf_pipeline.core.curation import (
    Dataset,
    DatasetChange,
    DatasetQuery,
    NewDataset,
    VoteQuery,
)
from rlhf_pipeline.core.errors import ConfigurationError, NotFound
from rlhf_pipeline.core.records import LARGEST, utc_now
from rlhf_pipeline.feedback.datasets.exporters import EXPORTERS
from rlhf_pipeline.improve import curated_sets

app = typer.Typer(help="Curated data sets: build, freeze, export.", no_args_is_help=True)
ACTOR = "rlhf datasets"
M = TypeVar("M", bound=BaseModel)
Name = Annotated[str, typer.Argument(metavar="NAME", help="Name of the data set.")]


@app.command("list")
def list_datasets(
    status: Annotated[
        str | None, typer.Option(help="Only those of this status; archived ones only so.")
    ] = None,
) -> None:
    """Data sets, newest first, with rows and quality as of their last build."""
    workspace = Workspace.open_current()
    only = _parse(DatasetFilter, json.dumps({"status": status, "limit": MOST_LISTED}))
    rows = [
        {
            "name": dataset.name,
            "type": dataset.type,
            "status": dataset.status,
            "rows": f"{dataset.n_rows:,}",
            "quality": "-" if dataset.quality is None else f"{dataset.quality.score:.2f}",
            "versions": str(dataset.n_versions),
            "exported": dataset.last_export.url if dataset.last_export else "-",
        }
        for dataset in workspace.store.datasets.page(only)
    ]
    show(rows, title="Data sets", empty="No data sets. `rlhf datasets build NAME` makes one.")


@app.command("build")
def build(
    name: Name,
    type: Annotated[
        str, typer.Option(help="Type of a new data set: preference, sft or unpaired.")
    ] = "preference",
    query: Annotated[
        str | None,
        typer.Option(
            help='What it holds, as JSON, such as \'{"votes": {"min_agreement": 0.7}, '
            '"feedback": {}}\'; default of a new one: all preference pairs of votes.'
        ),
    ] = None,
) -> None:
    """Count the rows of a data set and measure their quality; make it where there is none."""
    workspace = Workspace.open_current()
    files, store = workspace.files, workspace.store
    chosen = None if query is None else _parse(DatasetQuery, query)
    try:
        number = store.datasets.find(name).dataset_id
    except NotFound:
        new = _parse(NewDataset, json.dumps({"name": name, "type": type}))
        new = new.model_copy(update={"query": chosen or DatasetQuery(votes=VoteQuery())})
        dataset = curated_sets.create(files, store, new, actor=ACTOR)
    else:
        change = DatasetChange(query=chosen)
        dataset = curated_sets.build(files, store, number, actor=ACTOR, change=change)
    _show_quality(dataset)


@app.command("freeze")
def freeze(name: Name) -> None:
    """Freeze the rows of a data set as its next version, which never changes."""
    workspace = Workspace.open_current()
    dataset = workspace.store.datasets.find(name)
    version = curated_sets.freeze(workspace.files, workspace.store, dataset.dataset_id, actor=ACTOR)
    echo(
        f"{name}@{version.version}: {version.n_rows:,} rows, quality "
        f"{version.quality.score:.2f}, content {version.content_hash[:12]}"
    )


@app.command("export")
def export(
    name: Name,
    format: Annotated[
        str, typer.Option("--format", help=f"One of {', '.join(EXPORTERS)}.")
    ] = "trl",
    version: Annotated[
        int | None, typer.Option(min=1, max=LARGEST, help="A frozen version; default the newest.")
    ] = None,
    out: Annotated[
        str | None,
        typer.Option(
            help="Folder or fsspec URL, such as s3://bucket/sets; default <RLHF_HOME>/exports."
        ),
    ] = None,
) -> None:
    """Write a frozen version for a trainer or provider, checked by its rules, with a manifest."""
    workspace = Workspace.open_current()
    dataset = workspace.store.datasets.find(name)
    folder: str | Path = out or workspace.settings.exports
    exported = curated_sets.export(
        workspace.store,
        dataset.dataset_id,
        format,
        folder,
        actor=ACTOR,
        now=utc_now(),
        version=version,
    )
    echo(f"{exported.n_rows:,} rows of {name}@{exported.version} in {exported.url}")
    echo(f"SHA-256 {exported.sha256}")
    for warning in exported.warnings:
        echo(warning, err=True)


def _show_quality(dataset: Dataset) -> None:
    assert dataset.quality is not None  # it was built
    echo(f"{dataset.name}: {dataset.n_rows:,} rows, quality {dataset.quality.score:.2f}")
    rows = [
        {
            "part": part.name,
            "value": f"{part.value:.2f}",
            "rows": f"{part.n_rows:,}",
            "first": ", ".join(part.row_ids[:3]),
        }
        for part in dataset.quality.parts
    ]
    show(rows, title="Quality", empty="")
    for problem in dataset.quality.problems:
        echo(problem, err=True)


def _parse(kind: type[M], text: str) -> M:
    """Raises ConfigurationError for JSON that is no such record."""
    try:
        return kind.model_validate_json(text)
    except ValidationError as cause:
        faults = "; ".join(
            f"{'.'.join(map(str, error['loc'])) or 'JSON'}: {error['msg']}"
            for error in cause.errors()
        )
        names = ", ".join(kind.model_fields)
        raise ConfigurationError(f"{faults}. Correct it; known: {names}.") from None

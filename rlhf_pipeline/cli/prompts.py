"""`rlhf prompts`: makes prompts and lists their sources, without running the pipeline."""

import contextlib
import inspect
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Annotated

import typer

from rlhf_pipeline.cli.context import Workspace
from rlhf_pipeline.cli.parameters import Changes
from rlhf_pipeline.cli.tables import echo, show
from rlhf_pipeline.core.config import Settings
from rlhf_pipeline.core.parameters import parse_parameters
from rlhf_pipeline.generate.completions.text_generator import BackendTextGenerator
from rlhf_pipeline.generate.prompts import GENERATORS, Report, generate
from rlhf_pipeline.generate.prompts.dataset import write_jsonl
from rlhf_pipeline.generate.prompts.parameters import SourceParams
from rlhf_pipeline.improve.loop_settings import LoopSettings
from rlhf_pipeline.learn.reward_model import Encoder
from rlhf_pipeline.reports.words import format_count

app = typer.Typer(help="Make prompts.", no_args_is_help=True)


SHOWN_REJECTIONS = 20
SETTABLE = [name for name in SourceParams.model_fields if name not in ("n", "seed", "source")]


@app.command("generate", epilog=f"Parameters to --set: {', '.join(SETTABLE)}.")
def generate_prompts(
    num_prompts: Annotated[
        int,
        typer.Option(
            "--num-prompts",
            min=1,
            max=100_000,
            help="Number of prompts; the file has exactly that many lines.",
        ),
    ] = 10,
    out: Annotated[
        Path | None,
        typer.Option(help="File to write; default <RLHF_HOME>/exports/generated_prompts.jsonl."),
    ] = None,
    seed: Annotated[
        int, typer.Option(min=0, help="The same seed and day give the same prompts.")
    ] = 0,
    day: Annotated[
        datetime | None,
        typer.Option(
            formats=["%Y-%m-%d"],
            metavar="YYYY-MM-DD",
            help="UTC day of the prompts; default: today.",
        ),
    ] = None,
    source: Annotated[
        str, typer.Option(help="Source of the prompts; `rlhf prompts sources` lists them.")
    ] = "templates",
    file: Annotated[
        Path | None,
        typer.Option(
            help="Input of the source: a file of rows, a folder of texts, a template library or "
            "instructions."
        ),
    ] = None,
    uses_backend: Annotated[
        bool,
        typer.Option(
            "--uses-backend",
            help="Let the completion backend write prompts (freeform, distilabel), or write and "
            "judge them (evolution).",
        ),
    ] = False,
    changes: Changes = None,
) -> None:
    """Write prompts as JSONL, from the shipped templates or another source. docs/guides/prompts.md
    describes the sources.
    """
    settings = Settings.read()
    path = out or settings.exports / "generated_prompts.jsonl"
    params = parse_parameters(SourceParams, changes, n=num_prompts, seed=seed, source=source)
    texts = _open_backend(settings) if uses_backend else None
    report = Report()
    with _report_failures(texts):
        frame = generate(
            params,
            day=(day or datetime.now(UTC)).date().isoformat(),
            source_file=file
            or (settings.prompts_file if source == settings.prompt_source != "templates" else None),
            text_generator=texts,
            report=report,
            embed=Encoder(settings.encoder).encode if params.topic else None,
        )
    write_jsonl(frame, path)
    echo(f"{format_count(len(frame), 'prompt')} in {path}")
    if any(n for what, n in report.counts.items() if what != "kept"):
        echo(report.summary())
    for rejection in report.rejections[:SHOWN_REJECTIONS]:
        echo(f"rejected by {rejection.rule}: {rejection}", err=True)


@app.command("sources")
def sources() -> None:
    """List the sources of prompts: the shipped generators and those of installed packages."""
    rows = [
        {
            "source": name,
            "from": kind.__module__.partition(".")[0],
            "what": (inspect.getdoc(kind) or "").partition("\n")[0],
        }
        for name, kind in GENERATORS.items()
    ]
    show(rows, title="prompt sources", empty="There is no source of prompts.")


def _open_backend(settings: Settings) -> BackendTextGenerator:
    """Open the completion backend through the work ledger, which counts its calls."""
    workspace = Workspace.from_settings(settings)
    workspace.store.migrate()
    backend = workspace.champions.backend(settings)
    return BackendTextGenerator(
        backend,
        ledger=workspace.store.generation,
        calls=LoopSettings.read(settings, only="completions").calls(),
        asset="rlhf prompts",
    )


@contextlib.contextmanager
def _report_failures(texts: BackendTextGenerator | None) -> Iterator[None]:
    """Report why the backend wrote nothing, even if the command fails."""
    try:
        yield
    finally:
        for reason, n in sorted(texts.failures_.items()) if texts is not None else ():
            echo(f"{n:,} not written: {reason}", err=True)

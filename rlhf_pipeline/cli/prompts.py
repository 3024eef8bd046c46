"""`rlhf prompts`: make prompts without running the pipeline."""

from datetime import UTC, datetime
from pathlib import Path
from typing import Annotated

import typer

from rlhf_pipeline.config import Settings
from rlhf_pipeline.prompts import PromptParams, generate
from rlhf_pipeline.prompts.dataset import write_jsonl

app = typer.Typer(help="Make prompts.", no_args_is_help=True)


@app.callback()
def group() -> None:
    """Make prompts."""


@app.command("generate")
def generate_prompts(
    num_prompts: Annotated[
        int, typer.Option("--num-prompts", min=1, max=100_000, help="How many; the file has exactly so many lines.")
    ] = 10,
    out: Annotated[Path | None, typer.Option(help="File to write; default <RLHF_HOME>/exports/generated_prompts.jsonl.")] = None,
    seed: Annotated[int, typer.Option(min=0, help="Same seed and day, same prompts.")] = 0,
    day: Annotated[
        datetime | None, typer.Option(formats=["%Y-%m-%d"], metavar="YYYY-MM-DD", help="UTC day the prompts are for; default today.")
    ] = None,
) -> None:
    """Write prompts from the shipped templates as JSONL."""
    path = out or Settings.read().exports / "generated_prompts.jsonl"
    frame = generate(PromptParams(n=num_prompts, seed=seed), day=(day or datetime.now(UTC)).date().isoformat())
    write_jsonl(frame, path)
    typer.echo(f"{len(frame)} prompts in {path}")

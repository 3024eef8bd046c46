"""`rlhf lab`: worlds whose truth is known, beside what the library claims of them."""

import multiprocessing
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path
from typing import Annotated

import typer

from rlhf_pipeline.cli.tables import echo, progress_bar, show
from rlhf_pipeline.core.errors import ConfigurationError
from rlhf_pipeline.core.files import write_atomically
from rlhf_pipeline.simulation.laboratory import LAB_SCENARIOS
from rlhf_pipeline.simulation.laboratory.suite import run_suite
from rlhf_pipeline.simulation.laboratory.tables import (
    build_rows,
    describe_suite,
    write_markdown,
)

app = typer.Typer(
    help="The laboratory: worlds whose truth is known, beside what detection claims of them.",
    no_args_is_help=True,
)
FULL = 200  # streams a row


@app.command("suite")
def suite(
    streams: Annotated[int, typer.Option(min=1, help="Streams a row.")] = 20,
    full: Annotated[
        bool, typer.Option("--full", help=f"{FULL} streams a row, as the bars ask for.")
    ] = False,
    only: Annotated[
        list[str] | None,
        typer.Option(metavar="ROW", help="This row alone. Repeatable.", show_default=False),
    ] = None,
    out: Annotated[
        Path | None,
        typer.Option(help="Folder for laboratory.md.", show_default=False),
    ] = None,
) -> None:
    """Run all scenarios over many seeds and show each figure with its interval beside its bar."""
    names = _find_scenarios(only or list(LAB_SCENARIOS))
    processes = ProcessPoolExecutor(mp_context=multiprocessing.get_context("spawn"))
    with processes as pool, progress_bar("laboratory") as progress:
        report = run_suite(names, FULL if full else streams, pool.map, progress)
    show(build_rows(report.rows), title="laboratory", empty="", caption=describe_suite(report))
    if out is not None:
        out.mkdir(parents=True, exist_ok=True)
        write_atomically(out / "laboratory.md", write_markdown(report).encode())
        echo(f"written: {out / 'laboratory.md'}")


def _find_scenarios(names: list[str]) -> list[str]:
    unknown = [name for name in names if name not in LAB_SCENARIOS]
    if unknown:
        raise ConfigurationError(
            f"Unknown scenario {unknown[0]!r}. Known: {', '.join(LAB_SCENARIOS)}."
        )
    return list(dict.fromkeys(names))

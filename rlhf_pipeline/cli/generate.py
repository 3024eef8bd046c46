"""`rlhf generate`: completions of a file of prompts, by any backend, through the work ledger."""

import json
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Annotated, Any

import pandas as pd
import typer

from rlhf_pipeline.cli.context import Workspace
from rlhf_pipeline.cli.parameters import Changes
from rlhf_pipeline.cli.tables import build_records, echo, progress_bar, show
from rlhf_pipeline.core.config import Settings
from rlhf_pipeline.core.errors import PromptError
from rlhf_pipeline.core.files import open_atomically, write_atomically
from rlhf_pipeline.core.parameters import parse_parameters
from rlhf_pipeline.feedback.datasets.formats.csv import protect_cell
from rlhf_pipeline.generate.completions import CallParams, CompletionParams, Generation, RequestedBy
from rlhf_pipeline.generate.completions import generate as complete
from rlhf_pipeline.generate.prompts import Report
from rlhf_pipeline.generate.prompts.base import to_frame
from rlhf_pipeline.generate.prompts.dataset import read_drafts
from rlhf_pipeline.generate.prompts.rows import read_rows
from rlhf_pipeline.reports.words import format_count

ASSET = "rlhf generate"
# a file's prompts belong to no day, so that the same command tomorrow repeats no call
NO_DAY = "2000-01-01"
RESULT = (
    "prompt_id",
    "prompt",
    "text",
    "backend",
    "model_version",
    "temperature",
    "top_p",
    "sample_index",
    "seed",
    "n_prompt_tokens",
    "n_tokens",
    "latency_ms",
    "finish_reason",
    "error",
)
LOG = "raw_completions_log.jsonl"


class GenerateParams(CompletionParams, CallParams):
    """The parameters of sampling and of the backend under one set of names for `--set`."""


def generate(
    file: Annotated[
        Path,
        typer.Option(
            "--input",
            help="Prompts: JSONL, JSON, CSV or Parquet with a text column.",
            show_default=False,
        ),
    ],
    out: Annotated[
        Path | None,
        typer.Option(help="Folder for the results; default <RLHF_HOME>/exports/completions."),
    ] = None,
    workers: Annotated[
        int | None, typer.Option(min=1, max=1024, help="Concurrent calls to a provider.")
    ] = None,
    temperature: Annotated[
        list[float] | None, typer.Option(help="Sampling temperature; several values form a grid.")
    ] = None,
    top_p: Annotated[
        list[float] | None,
        typer.Option("--top-p", help="Top-p of nucleus sampling; several values form a grid."),
    ] = None,
    max_tokens: Annotated[
        int | None,
        typer.Option("--max-tokens", min=1, help="Tokens after which a completion is cut off."),
    ] = None,
    k: Annotated[int, typer.Option(min=1, max=64, help="Completions per prompt.")] = 1,
    seed: Annotated[
        int, typer.Option(min=0, help="Seed of sampling; another seed gives other completions.")
    ] = 0,
    system: Annotated[str | None, typer.Option(help="System prompt.")] = None,
    backend: Annotated[
        str | None,
        typer.Option(
            help="local, openai_compatible, anthropic, template, …; default "
            "RLHF_COMPLETION_BACKEND."
        ),
    ] = None,
    model: Annotated[
        str | None, typer.Option(help="The provider's name for the model; default RLHF_API_MODEL.")
    ] = None,
    base_url: Annotated[
        str | None,
        typer.Option("--base-url", help="Base URL of the provider; default RLHF_BASE_URL."),
    ] = None,
    budget: Annotated[
        float | None, typer.Option(min=0, help="Budget of this command; needs the two prices.")
    ] = None,
    prompt_price: Annotated[
        float | None,
        typer.Option("--prompt-price", min=0, help="Price of a million prompt tokens."),
    ] = None,
    completion_price: Annotated[
        float | None,
        typer.Option("--completion-price", min=0, help="Price of a million completion tokens."),
    ] = None,
    changes: Changes = None,
) -> None:
    """Complete a file of prompts; write JSON, CSV and a log of every call. Run again, it continues
    where it stopped.

    A provider's key is read from RLHF_API_KEY or rlhf.yaml; no flag takes one, because it would
    stay in the shell's history.
    """
    settings = _read_settings(backend, model, base_url)
    params = parse_parameters(
        GenerateParams,
        changes,
        k=k,
        seed=seed,
        system=system,
        temperatures=temperature or [0.7],
        top_ps=top_p or [1.0],
        max_new_tokens=max_tokens,
        concurrency=workers,
        budget_per_run=budget,
        prompt_price=prompt_price,
        completion_price=completion_price,
    )
    prompts = _read_prompts(file)
    workspace = Workspace.from_settings(settings)
    workspace.store.migrate()
    completion_backend = workspace.champions.backend(settings, timeout_s=params.timeout_s)
    try:
        with progress_bar("completions") as progress:
            generation = complete(
                prompts,
                completion_backend,
                params,
                ledger=workspace.store.generation,
                calls=params,
                requested_by=RequestedBy(ASSET),
                progress=progress,
            )
    except KeyboardInterrupt:
        echo(
            "Stopped. Finished completions are kept; the same command continues from here.",
            fg=typer.colors.YELLOW,
            err=True,
        )
        raise typer.Exit(130) from None
    folder = out or settings.exports / "completions"
    _write(generation, prompts, folder)
    n_calls = _write_log(workspace.store.generation.read_calls(generation.run_id), folder / LOG)
    _print_summary(generation, folder, n_calls)


def _read_settings(backend: str | None, model: str | None, base_url: str | None) -> Settings:
    overrides = {"completion_backend": backend, "api_model": model, "base_url": base_url}
    return Settings.read().model_copy(
        update={name: value for name, value in overrides.items() if value is not None}
    )


def _read_prompts(path: Path) -> pd.DataFrame:
    """PROMPTS of a file, in its order. Reports and drops rows that are not prompts. Raises
    PromptError if none is left.
    """
    report = Report()
    drafts = [(draft.prompt_id, draft) for _, draft in read_drafts(read_rows(path), report)]
    report.n_kept = len(drafts)
    if any(n for what, n in report.counts.items() if what != "kept"):
        echo(f"{path}: {report.summary()}", fg=typer.colors.YELLOW, err=True)
    if not drafts:
        raise PromptError(
            f"{path} holds no prompt. Give rows with a column text, prompt, instruction or "
            "question."
        )
    return to_frame(drafts, source="dataset", day=NO_DAY, seed=0)


def _write(generation: Generation, prompts: pd.DataFrame, folder: Path) -> None:
    texts = prompts.set_index("prompt_id")["text"]
    rows = generation.frame.assign(prompt=generation.frame["prompt_id"].map(texts))[list(RESULT)]
    text = json.dumps(build_records(rows), ensure_ascii=False, indent=1) + "\n"
    write_atomically(folder / "completions.json", text.encode())
    safe = rows.map(lambda cell: protect_cell(cell) if isinstance(cell, str) else cell)
    table = safe.to_csv(index=False, lineterminator="\r\n")
    write_atomically(folder / "completions.csv", table.encode())


def _write_log(calls: Iterable[Mapping[str, Any]], path: Path) -> int:
    """Write one JSON object per call, including those of earlier attempts; return their number."""
    n = 0
    with open_atomically(path) as file:
        for call in calls:
            plain = {**call, "params": json.loads(call["params"]), "cost": call["cost"] / 1e9}
            file.write((json.dumps(plain, ensure_ascii=False, default=str) + "\n").encode())
            n += 1
    return n


def _print_summary(generation: Generation, folder: Path, n_calls: int) -> None:
    n_failed = sum(generation.kinds.values())
    echo(
        f"{len(generation.frame) - n_failed:,} of {len(generation.frame):,} completions in "
        f"{folder} ({generation.n_cached:,} from the cache; {format_count(n_calls, 'call')} "
        f"in all, in {LOG}), "
        f"{generation.seconds:.1f} s"
    )
    if generation.n_with_reasoning:
        echo(
            f"reasoning before {generation.n_with_reasoning:,} answers "
            "(--set reasoning=drop, show or train)"
        )
    if generation.kinds:
        show(
            [{"why": kind, "rows": f"{n:,}"} for kind, n in generation.kinds.items()],
            title="failed",
            empty="",
        )
    if generation.cost or generation.n_unknown:
        unknown = (
            f"; {generation.n_unknown:,} calls may have been billed, "
            f"at worst {generation.cost_unknown:.6f}"
            if generation.n_unknown
            else ""
        )
        echo(f"spent {generation.cost:.6f}{unknown}")

"""Reads prompts row by row: from a file of rows, a folder of texts, or a data set of the hub.

An unreadable row becomes a `PromptRow` with a fault; the others are still read. A file
that cannot be read at all raises PromptError.
"""

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, NamedTuple

import pandas as pd

from rlhf_pipeline.core.errors import DatasetError, PromptError
from rlhf_pipeline.core.row_files import SUFFIXES, open_rows
from rlhf_pipeline.core.row_files.csv_rows import find_undecoded

DOCUMENTS = (".txt", ".md")


class PromptRow(NamedTuple):
    """One row: its place for errors, and its cells; or its fault with the cure."""

    where: str
    cells: Mapping[str, Any]
    fault: str | None = None


def read_rows(path: Path) -> Iterator[PromptRow]:
    """The rows of a file, or the texts of a folder. Raises PromptError for a path that does not
    exist or a file that cannot be read.
    """
    if path.is_dir():
        yield from _read_documents(path)
    elif not path.is_file():
        raise PromptError(f"Prompts file {path} does not exist. Check RLHF_PROMPTS_FILE.")
    elif path.stat().st_size > 0:
        try:
            yield from _read_file(path)
        except DatasetError as cause:
            raise PromptError(str(cause)) from cause


def _read_file(path: Path) -> Iterator[PromptRow]:
    unit = "row" if path.suffix.lower() == ".parquet" else "line"
    rows = open_rows(path)
    for row in rows:
        where = f"{path}, {unit} {row.line}"
        fault = row.fault or (find_undecoded(row.cells.values()) if rows.is_csv else None)
        if fault is not None:
            yield PromptRow(where, {}, fault)
        elif rows.is_csv:  # an empty cell is a missing one
            cells = {name.strip(): cell or None for name, cell in row.cells.items()}
            yield PromptRow(where, cells)
        else:
            yield PromptRow(where, replace_missing(row.cells))


def is_row_file(path: Path) -> bool:
    """Whether `read_rows` reads files of this name."""
    return path.is_dir() or path.suffix.lower() in SUFFIXES


def read_hub_rows(name: str, split: str) -> Iterator[PromptRow]:
    """The rows of one split of a data set, by hub id or folder, streamed without a copy on disk.
    Raises PromptError.
    """
    import datasets

    where = f"data set {name}, {split}"
    try:
        rows = datasets.load_dataset(name, split=split, streaming=True)
        for number, cells in enumerate(rows, start=1):
            yield PromptRow(f"{where}, row {number}", replace_missing(cells))
    except (OSError, ValueError, RuntimeError, datasets.exceptions.DatasetsError) as cause:
        reason = str(cause).splitlines()[0] if str(cause) else type(cause).__name__
        raise PromptError(
            f"The {where} cannot be read ({reason}). Check its name and split; without a network "
            "give a folder of JSONL, CSV or Parquet files."
        ) from cause


def replace_missing(cells: Mapping[Any, Any]) -> dict[str, Any]:
    """Cells with None for missing values and NaN."""
    return {
        str(key): None
        if value is None or (pd.api.types.is_scalar(value) and pd.isna(value))
        else value
        for key, value in cells.items()
    }


def _read_documents(folder: Path) -> Iterator[PromptRow]:
    """Each text below a folder, such as a résumé or a transcript, cleaned as `rlhf import prompts`
    does, with its name and length.
    """
    for path in sorted(
        p for p in folder.rglob("*") if p.suffix.lower() in DOCUMENTS and p.is_file()
    ):
        try:
            text = (
                path.read_bytes()
                .decode("utf-8-sig")
                .replace("\r\n", "\n")
                .replace("\r", "\n")
                .strip()
            )
        except UnicodeDecodeError as cause:
            yield PromptRow(
                str(path),
                {},
                f"not UTF-8 (byte {cause.start + 1}: {cause.reason}). Save the file as UTF-8",
            )
        except OSError as cause:
            yield PromptRow(
                str(path),
                {},
                f"it cannot be read ({cause.strerror or cause}). Check its permissions and the "
                "disk",
            )
        else:
            variables = {
                "document": path.relative_to(folder).as_posix(),
                "n_whitespace_tokens": len(text.split()),
            }
            yield PromptRow(str(path), {"text": text, "variables": variables})

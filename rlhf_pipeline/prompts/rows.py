"""Rows of a JSONL, JSON, CSV or Parquet file, of a folder of texts, or of a data set of the hub,
one by one. Knows files; knows no prompts.

A row that cannot be read costs itself alone: it comes as a `PromptRow` with a fault. PromptError is
for what cannot be read at all.
"""

import csv
import json
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import pandas as pd

from rlhf_pipeline.documents import DocumentError, parse_json, parse_json_at
from rlhf_pipeline.errors import PromptError
from rlhf_pipeline.parquet import READ_OPTIONS

DATA_FILES = (".jsonl", ".ndjson", ".json", ".csv", ".parquet")
DOCUMENTS = (".txt", ".md")
ROWS_AT_ONCE = 1_000


class PromptRow(NamedTuple):
    """One row: the words that name it in an error, and its cells; or the fault that keeps it from
    being read, with its cure.
    """

    where: str
    cells: Mapping[str, Any]
    fault: str | None = None


def read_rows(path: Path) -> Iterator[PromptRow]:
    """The rows of a file, or the texts of a folder. Raises PromptError for what does not exist, is
    of another kind, or is whole no such file."""
    if path.is_dir():
        yield from _read_documents(path)
        return
    if not path.is_file():
        raise PromptError(f"Prompts file {path} does not exist. Check RLHF_PROMPTS_FILE.")
    kind = path.suffix.lower()
    if kind in DATA_FILES[:2]:
        yield from _json_lines(path)
    elif kind == ".json":
        yield from _json_array(path)
    elif kind == ".csv":
        yield from _csv_rows(path)
    elif kind == ".parquet":
        yield from _parquet_rows(path)
    else:
        raise PromptError(
            f"Prompts file {path}: unknown kind {kind!r}. Give {', '.join(DATA_FILES[:-1])} or "
            f"{DATA_FILES[-1]}."
        )


def duplicate_columns(schema: Any) -> list[str]:
    """Names that an Arrow schema holds twice, nested ones with their path, sorted."""
    return sorted(set(_find_duplicates([schema.field(i) for i in range(len(schema.names))], "")))


def _find_duplicates(fields: Sequence[Any], path: str) -> Iterator[str]:
    names = [field.name for field in fields]
    for field in fields:
        if names.count(field.name) > 1:
            yield f"{path}{field.name}"
        kind = field.type
        yield from _find_duplicates(
            [kind.field(i) for i in range(kind.num_fields)], f"{path}{field.name}."
        )


def is_row_file(path: Path) -> bool:
    """Whether `read_rows` may read it, by its name."""
    return path.is_dir() or path.suffix.lower() in DATA_FILES


def read_hub_rows(name: str, split: str) -> Iterator[PromptRow]:
    """The rows of one split of a data set, by hub id or folder, streamed: nothing is kept on disk.
    Raises PromptError naming cause and cure.
    """
    import datasets

    where = f"data set {name}, {split}"
    try:
        rows = datasets.load_dataset(name, split=split, streaming=True)
        for number, cells in enumerate(rows, start=1):
            yield PromptRow(f"{where}, row {number}", replace_missing(cells))
    except (OSError, ValueError, RuntimeError, datasets.exceptions.DatasetsError) as cause:
        said = str(cause).splitlines()[0] if str(cause) else type(cause).__name__
        raise PromptError(
            f"The {where} cannot be read ({said}). Check its name and split; without a network "
            "give a folder of JSONL, CSV or Parquet files."
        ) from cause


def replace_missing(cells: Mapping[Any, Any]) -> dict[str, Any]:
    """Cells with None for what is missing, NaN among it."""
    return {
        str(key): None
        if value is None or (pd.api.types.is_scalar(value) and pd.isna(value))
        else value
        for key, value in cells.items()
    }


def _lines(path: Path) -> Iterator[tuple[int, str, str | None]]:
    """Number, text and fault of each line; bytes that are no UTF-8 stand as lone surrogates, so
    that a file of rows keeps its shape.
    """
    with path.open("rb") as file:
        for number, line in enumerate(file, start=1):
            encoding = "utf-8-sig" if number == 1 else "utf-8"
            try:
                yield number, line.decode(encoding), None
            except UnicodeDecodeError as cause:
                fault = (
                    f"not UTF-8 (byte {cause.start + 1}: {cause.reason}). Save the file as UTF-8"
                )
                yield number, line.decode(encoding, errors="surrogateescape"), fault


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
            known = {
                "document": path.relative_to(folder).as_posix(),
                "n_whitespace_tokens": len(text.split()),
            }
            yield PromptRow(str(path), {"text": text, "variables": known})


def _json_lines(path: Path) -> Iterator[PromptRow]:
    for number, line, fault in _lines(path):
        if line.strip():
            yield _json_row(f"{path}, line {number}", line, fault)


def _json_row(where: str, line: str, fault: str | None) -> PromptRow:
    if fault is not None:
        return PromptRow(where, {}, fault)
    try:
        cells = parse_json(line)
    except DocumentError as cause:
        return PromptRow(where, {}, str(cause))
    except json.JSONDecodeError as cause:
        return PromptRow(
            where, {}, f"no JSON ({cause.msg}, column {cause.colno}). Write one JSON object a line"
        )
    except (ValueError, RecursionError) as cause:  # a number or a nesting beyond what Python reads
        return PromptRow(where, {}, f"no JSON ({cause}). Write one JSON object a line")
    return _build_row(where, cells)


def _build_row(where: str, cells: Any) -> PromptRow:
    if isinstance(cells, dict):
        return PromptRow(where, replace_missing(cells))
    return PromptRow(
        where, {}, f"a {type(cells).__name__}, not an object. Write one JSON object a row"
    )


def _json_array(path: Path) -> Iterator[PromptRow]:
    """Objects of a list, each by the line it begins on. What stands after a place that is no JSON
    cannot be told apart and is refused.
    """
    try:
        said = path.read_bytes().decode("utf-8-sig")
    except UnicodeDecodeError as cause:
        raise PromptError(
            f"{path}: not UTF-8 (byte {cause.start + 1}: {cause.reason}). Save the file as UTF-8."
        ) from cause
    at, line = _skip_blanks(said, 0), 1
    if said[at : at + 1] != "[":
        raise PromptError(
            f"{path} begins with no list. Write [{{...}}, {{...}}], or one object a line in a "
            ".jsonl file."
        )
    seen, at = 0, _skip_blanks(said, at + 1)
    while said[at : at + 1] != "]":
        line, seen = line + said.count("\n", seen, at), at
        try:
            cells, end = parse_json_at(said, at)
        except DocumentError as cause:
            raise PromptError(f"{path}, line {line}: {cause}.") from cause
        except (ValueError, RecursionError) as cause:
            raise PromptError(
                f"{path}, line {line}: no JSON ({cause}). Correct it; what follows cannot be read "
                "either."
            ) from cause
        yield _build_row(f"{path}, line {line}", cells)
        at = _skip_blanks(said, end)
        if said[at : at + 1] == ",":
            at = _skip_blanks(said, at + 1)
        elif said[at : at + 1] != "]":
            raise PromptError(
                f"{path}, line {line}: neither a comma nor the end of the list follows. Correct it."
            )


def _skip_blanks(said: str, at: int) -> int:
    while said[at : at + 1].isspace():
        at += 1
    return at


def _csv_rows(path: Path) -> Iterator[PromptRow]:
    """Records by the line each begins on, quoted as in RFC 4180. Read strictly: a quote that is
    left open would else swallow all that follows.
    """
    # so that an overlong prompt is refused by name, not by the csv module
    csv.field_size_limit(100_000_000)
    faults: dict[int, str] = {}

    def texts() -> Iterator[str]:
        for number, line, fault in _lines(path):
            if fault is not None:
                faults[number] = fault
            yield line

    columns: list[str] | None = None
    reader = csv.reader(texts(), strict=True)
    while True:
        where, fault, record = f"{path}, line {reader.line_num + 1}", None, []
        try:
            record = next(reader)
        except StopIteration:
            return
        except csv.Error as cause:
            if "unexpected end" in str(cause):
                raise PromptError(
                    f"{where}: a quoted cell that opens here never ends. A quote is missing or the "
                    "file is cut off."
                ) from cause
            fault = (
                f"no CSV ({cause}). Double the quotes inside quoted cells, and end lines as "
                "\\n or \\r\\n"
            )
        undecoded = list(faults.values())  # of every line of the record
        faults.clear()
        fault = undecoded[0] if undecoded else fault
        if columns is None:
            columns = _parse_header(record, fault, where)
        elif fault is not None:
            yield PromptRow(where, {}, fault)
        elif record and len(record) != len(columns):
            yield PromptRow(
                where,
                {},
                f"cells: {len(record)}, in the header: {len(columns)}. Quote cells that hold a "
                "comma or a line break",
            )
        elif record:
            yield PromptRow(
                where, {name: cell for name, cell in zip(columns, record, strict=True) if cell}
            )


def _parse_header(header: list[str], fault: str | None, where: str) -> list[str]:
    """The names of a header. Raises PromptError where they name no cells."""
    columns = [name.strip() for name in header]
    twice = sorted({name for name in columns if name and columns.count(name) > 1})
    if fault is not None:
        raise PromptError(f"{where}: {fault}. This line names the columns.")
    if twice:
        raise PromptError(f"{where}: columns {twice} come twice in the header. Rename one of them.")
    other = next((sign for sign in ";\t|" if len(columns) == 1 and sign in columns[0]), None)
    if other is not None:
        raise PromptError(
            f"{where}: the columns are separated by {other!r}, not by commas. Save the file with "
            "commas, or bring it in by `rlhf import prompts FILE --delimiter`."
        )
    return columns


def _parquet_rows(path: Path) -> Iterator[PromptRow]:
    import pyarrow as pa
    import pyarrow.parquet as pq

    number = 0
    try:
        with pq.ParquetFile(path, **READ_OPTIONS) as file:
            twice = duplicate_columns(file.schema_arrow)
            if twice:
                raise PromptError(
                    f"{path}: columns {twice} come twice in the schema. Rename one of them."
                )
            for batch in file.iter_batches(ROWS_AT_ONCE):
                for cells in batch.to_pylist():
                    number += 1
                    yield PromptRow(f"{path}, row {number}", replace_missing(cells))
    except (OSError, ValueError, pa.ArrowException) as cause:
        raise PromptError(
            f"{path} is no readable Parquet file ({cause}). Write it again."
        ) from cause

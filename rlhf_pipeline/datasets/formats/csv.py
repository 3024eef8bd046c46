"""CSV that is safe to open in a spreadsheet.

RFC 4180 in UTF-8: commas, CRLF, doubled quotes, line breaks inside quotes. A leading apostrophe
marks two things that CSV cannot express:

- An empty cell is a missing value; a cell that begins with an apostrophe is a text without it. So
  the empty text is `'`.
- A text that a spreadsheet would run as a formula (`=1+1`) is written as `'=1+1`, and a text that
  begins with an apostrophe gets a second one. All other texts are unchanged.
"""

import csv
import io
import re
from collections.abc import Callable, Iterable, Iterator
from typing import IO, Any, ClassVar

import pandas as pd

from rlhf_pipeline.datasets.formats.base import plain_columns
from rlhf_pipeline.errors import FrameError
from rlhf_pipeline.frames import Column, FrameSchema, Kind, check_frame

MARK = "'"
# Beginnings of formulas (OWASP, "CSV injection"), including full-width characters and leading
# spaces that some programs skip.
FORMULA = re.compile(r"\s*[=+\-@＝＋－＠]|[\t\r\n]")
LARGEST_CELL = 2**31 - 1  # Python's own limit is 128 KiB

READERS: dict[Kind, Callable[[str], Any]] = {
    "text": str,
    "json": str,
    "time": str,
    "int": int,
    "float": float,
    "bool": {"true": True, "false": False}.__getitem__,
}


class Csv:
    """CSV as the module docstring describes. The first line names the columns."""

    name: ClassVar[str] = "csv"
    suffix: ClassVar[str] = ".csv"

    def write(self, batches: Iterable[pd.DataFrame], schema: FrameSchema, file: IO[bytes]) -> int:
        text = io.TextIOWrapper(file, encoding="utf-8", newline="", write_through=True)
        try:
            writer = csv.writer(text, lineterminator="\r\n")
            writer.writerow(schema.columns)
            n = 0
            for batch in batches:
                columns = plain_columns(check_frame(batch, schema), schema)
                writer.writerows(
                    zip(
                        *(_cells(columns[name], column) for name, column in schema.columns.items()),
                        strict=True,
                    )
                )
                n += len(batch)
            return n
        finally:
            text.detach()  # otherwise it would close the caller's file

    def read(self, file: IO[bytes], schema: FrameSchema) -> pd.DataFrame:
        text = io.TextIOWrapper(file, encoding="utf-8-sig", newline="")
        try:
            return _frame(text, schema)
        finally:
            text.detach()


def protect_cell(text: str | None) -> str:
    """The cell of a text or missing value, with the apostrophe where needed.

    >>> [protect_cell(text) for text in (None, "", "=1+1", "'tis", "plain")]
    ['', "'", "'=1+1", "''tis", 'plain']
    """
    if text is None:
        return ""
    return MARK + text if not text or text.startswith(MARK) or FORMULA.match(text) else text


def unprotect_cell(cell: str) -> str | None:
    """The inverse of `protect_cell`.

    >>> [unprotect_cell(cell) for cell in ("", "'", "'=1+1", "''tis", "plain")]
    [None, '', '=1+1', "'tis", 'plain']
    """
    return cell.removeprefix(MARK) if cell else None


def _cells(values: list[Any], column: Column) -> list[str]:
    if column.kind in ("text", "json"):
        return [protect_cell(value) for value in values]
    if column.kind == "bool":
        return ["" if value is None else str(value).lower() for value in values]
    # str of a float is its shortest exact text
    return ["" if value is None else str(value) for value in values]


def _frame(text: io.TextIOWrapper, schema: FrameSchema) -> pd.DataFrame:
    csv.field_size_limit(LARGEST_CELL)
    reader = csv.reader(text, strict=True)
    lines = _lines(reader)
    _, names = next(lines, (1, []))
    if sorted(names) != sorted(schema.columns):
        raise FrameError(
            f"{schema.name}: the first line names {names}; expected: {list(schema.columns)}. Is it "
            "a CSV with commas?"
        )
    columns: dict[str, list[Any]] = {name: [] for name in names}
    for number, cells in lines:
        if len(cells) != len(names):
            raise FrameError(
                f"{schema.name}: line {number} has {len(cells)} cells, the first line "
                f"{len(names)}. Correct or drop that line."
            )
        for name, cell in zip(names, cells, strict=True):
            columns[name].append(_value(cell, name, schema, number))
    return check_frame(
        pd.DataFrame({name: pd.Series(values, dtype=object) for name, values in columns.items()}),
        schema,
    )


def _lines(reader: Any) -> Iterator[tuple[int, list[str]]]:
    try:
        for cells in reader:
            yield reader.line_num, cells
    except (csv.Error, UnicodeDecodeError) as cause:
        raise FrameError(
            f"After line {reader.line_num}: not CSV in UTF-8 ({cause}). Write the file again, or "
            "correct that line."
        ) from cause


def _value(cell: str, name: str, schema: FrameSchema, number: int) -> Any:
    value = unprotect_cell(cell)
    kind = schema.columns[name].kind
    try:
        return None if value is None else READERS[kind](value)
    except (ValueError, KeyError) as cause:
        raise FrameError(
            f"{schema.name}.{name}: {cell!r} in line {number} is no {kind}. "
            f"{schema.columns[name].description}."
        ) from cause

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
from collections.abc import Iterable
from typing import IO, Any, ClassVar

import pandas as pd

from rlhf_pipeline.core.frames import Column, FrameSchema, check_frame
from rlhf_pipeline.feedback.datasets.formats.base import plain_columns

MARK = "'"
# Beginnings of formulas (OWASP, "CSV injection"), including full-width characters and leading
# spaces that some programs skip.
FORMULA = re.compile(r"\s*[=+\-@＝＋－＠]|[\t\r\n]")


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

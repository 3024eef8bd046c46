"""Writes tables as CSV files that are safe to open in a spreadsheet."""

import csv
import io
from collections.abc import Callable, Iterable, Iterator, Sequence
from datetime import date, datetime
from enum import Enum
from typing import Any, TypeVar

from pydantic import BaseModel
from starlette.responses import StreamingResponse

from rlhf_pipeline.api_types.base import Page
from rlhf_pipeline.datasets.formats.csv import protect_cell

AT_ONCE = 200
M = TypeVar("M", bound=BaseModel)


def csv_of(name: str, columns: Sequence[str], rows: Iterable[BaseModel]) -> StreamingResponse:
    """A CSV file of that name, written as the rows are read."""
    headers = {"Content-Disposition": f'attachment; filename="{name}.csv"'}
    return StreamingResponse(
        _csv_lines(columns, rows), media_type="text/csv; charset=utf-8", headers=headers
    )


def read_all_pages(page: Callable[[str | None], Page[M]]) -> Iterator[M]:
    """The items of all pages of a list."""
    cursor = None
    while True:
        found = page(cursor)
        yield from found.items
        if found.next is None:
            return
        cursor = found.next


def _csv_lines(columns: Sequence[str], rows: Iterable[BaseModel]) -> Iterator[str]:
    buffer = io.StringIO(newline="")
    writer = csv.writer(buffer, lineterminator="\r\n")
    writer.writerow(columns)
    for row in rows:
        writer.writerow([_format_cell(getattr(row, name)) for name in columns])
        if buffer.tell() > 65_536:
            yield buffer.getvalue()
            buffer.seek(0)
            buffer.truncate()
    yield buffer.getvalue()


def _format_cell(value: Any) -> str:
    if value is None:
        return ""
    if isinstance(value, Enum):
        return protect_cell(str(value.value))
    if isinstance(value, datetime | date):
        return value.isoformat()
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, int | float):
        return str(value)
    if isinstance(value, str):
        return protect_cell(value)
    return protect_cell(_encode_json(value))


def _encode_json(value: Any) -> str:
    import json

    return json.dumps(value, default=lambda one: one.model_dump(mode="json"), ensure_ascii=False)

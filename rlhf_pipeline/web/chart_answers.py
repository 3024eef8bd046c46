"""Answers a chart as its record, its numbers or its picture."""

import csv
import io
import re
from collections.abc import Callable
from typing import Annotated, Literal

from fastapi import Query
from starlette.concurrency import run_in_threadpool
from starlette.requests import Request
from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from rlhf_pipeline.feedback.datasets.formats.csv import protect_cell
from rlhf_pipeline.reports.chart import Chart
from rlhf_pipeline.reports.chart_rows import ChartRow, list_rows, render_table, write_exactly
from rlhf_pipeline.reports.draw import draw_png


def read_chart_format(
    format: Annotated[
        Literal["json", "csv", "html", "png"],
        Query(description="The numbers behind the chart as CSV or table, or its picture."),
    ] = "json",
) -> None:
    """Declares the parameter that `ChartAnswer` reads."""


class ChartAnswer(Response):
    """A chart as JSON, which is not validated once more, or in the `format` that the request asks
    for.
    """

    def __init__(self, chart: Chart):
        super().__init__()
        self._chart = chart

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        file_format = Request(scope).query_params.get("format", "json")
        media_type, write = FORMATS[file_format]
        name = re.sub(r"[^a-z0-9]+", "_", self._chart.title.lower())[:60]
        as_file = {"Content-Disposition": f'attachment; filename="{name}.{file_format}"'}
        answer = Response(
            await run_in_threadpool(write, self._chart),
            headers=as_file if file_format in {"csv", "png"} else None,
            media_type=media_type,
        )
        await answer(scope, receive, send)


def write_csv(chart: Chart) -> str:
    """A line for each point and each change, with numbers as they are."""
    file = io.StringIO(newline="")
    writer = csv.writer(file, lineterminator="\r\n")
    writer.writerow(ChartRow._fields[:-1])  # links are for the table
    for row in list_rows(chart, write_exactly):
        # an empty cell is an unknown value, not an empty text
        writer.writerow(
            protect_cell(cell) if cell and isinstance(cell, str) else cell for cell in row[:-1]
        )
    return file.getvalue()


# media type and function by format
FORMATS: dict[str, tuple[str, Callable[[Chart], str | bytes]]] = {
    "json": ("application/json", Chart.model_dump_json),
    "csv": ("text/csv; charset=utf-8", write_csv),
    "html": ("text/html", render_table),
    "png": ("image/png", draw_png),
}

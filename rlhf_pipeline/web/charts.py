"""Answers routes of charts with their record as JSON."""

from typing import Annotated

from fastapi import Query, Response

from rlhf_pipeline.api_types.filters import DayFilter
from rlhf_pipeline.reports.chart import Chart

Days = Annotated[DayFilter, Query()]


def answer_chart(chart: Chart) -> Response:
    """The chart as JSON, which is not validated once more."""
    return Response(chart.model_dump_json(), media_type="application/json")

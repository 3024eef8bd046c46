"""Answers routes of charts: the days that the charts of a page share, and records as JSON."""

from collections.abc import Collection
from dataclasses import dataclass
from datetime import date, timedelta
from typing import Annotated

from fastapi import Depends, Query, Response
from pydantic import BeforeValidator, Field

from rlhf_pipeline.records import Text
from rlhf_pipeline.reports.chart import Chart
from rlhf_pipeline.web.problems import Problem

SHOWN_DAYS = 90  # without `since`
# an empty field of a form
Day = Annotated[date | None, BeforeValidator(lambda value: value or None)]
ChartFilter = Annotated[
    Annotated[Text, Field(max_length=200)] | None,
    BeforeValidator(lambda value: value or None),
    Query(),
]


@dataclass(frozen=True)
class DayFilter:
    """The days that a page's address asks for; None: open."""

    since: date | None = None
    until: date | None = None

    def resolve(self, newest: date | None, n_days: int = SHOWN_DAYS) -> tuple[date, date]:
        """First and last day: without `until` up to the newest day with data, without `since`
        `n_days` days.
        """
        last = self.until or max(newest or date.min, self.since or date.min)
        return self.since or last - timedelta(days=min(n_days, last.toordinal()) - 1), last

    def find_left_out(self, known: Collection[date], n_days: int = SHOWN_DAYS) -> date | None:
        """The first of the days with data, where `resolve` leaves it out without being asked to."""
        if self.since is not None or not known:
            return None
        first = min(known)
        return first if first < self.resolve(max(known), n_days)[0] else None

    def includes(self, day: date) -> bool:
        return (self.since or date.min) <= day <= (self.until or date.max)


def read_days(since: Day = None, until: Day = None) -> DayFilter:
    """Raises Problem 422 for a first day after the last."""
    if since and until and since > until:
        raise Problem(
            422,
            f"From {since} is after To {until}. Exchange them or leave one out.",
            kind="invalid",
            errors=[("query.since", "is after until"), ("query.until", "is before since")],
        )
    return DayFilter(since, until)


Days = Annotated[DayFilter, Depends(read_days)]


def answer_chart(chart: Chart) -> Response:
    """The chart as JSON, which is not validated once more."""
    return Response(chart.model_dump_json(), media_type="application/json")

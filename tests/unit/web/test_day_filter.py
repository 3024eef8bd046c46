from datetime import date, timedelta

import pytest

from rlhf_pipeline.core.api_types.filters import DayFilter

NEWEST = date(2026, 6, 30)
FIRST_SHOWN = NEWEST - timedelta(days=89)


@pytest.mark.parametrize(
    ("since", "first", "left_out"),
    [(None, -1, True), (None, 0, False), (FIRST_SHOWN, -1, False)],
)
def test_only_days_before_the_default_range_are_left_out(
    since: date | None, first: int, left_out: bool
):
    day = FIRST_SHOWN + timedelta(days=first)
    left_out_day = DayFilter(since=since).find_left_out([NEWEST, day])
    assert left_out_day == (day if left_out else None)


def test_empty_days_leave_nothing_out():
    assert DayFilter().find_left_out([]) is None

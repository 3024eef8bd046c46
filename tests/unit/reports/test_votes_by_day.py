from datetime import date

from rlhf_pipeline.reports.chart import day_value
from rlhf_pipeline.reports.votes_by_day import chart_votes_by_day

COUNTS = {date(1999, 1, 1): 7, date(2026, 1, 1): 2, date(2026, 1, 2): 0, date(2026, 1, 3): 4}


def test_the_axis_begins_with_the_first_votes_within_the_days():
    chart = chart_votes_by_day(COUNTS, date(2025, 1, 4), date(2026, 1, 4), links=True)
    (panel,) = chart.panels
    assert panel.x.low == day_value(date(2026, 1, 1)) - 0.5
    assert panel.x.high == day_value(date(2026, 1, 4)) + 0.5
    (bars,) = panel.series
    assert bars.y == (2, 4)
    assert [tick.label for tick in panel.y.ticks] == ["0", "1", "2", "3", "4"]
    assert bars.links == ("/votes?day=2026-01-01", "/votes?day=2026-01-03")

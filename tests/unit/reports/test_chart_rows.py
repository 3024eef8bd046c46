"""The numbers behind a chart: a row for each point and each change, safe in a spreadsheet."""

from datetime import date, timedelta

from rlhf_pipeline.reports.chart import (
    Axis,
    Chart,
    Mark,
    Panel,
    Series,
    day_axis,
    day_value,
)
from rlhf_pipeline.reports.chart_rows import (
    ChartRow,
    list_rows,
    render_table,
    write_words,
)

DAY = date(2026, 1, 1)
DAYS = day_axis(DAY, DAY + timedelta(days=1))
SHARE = Axis(low=0, high=1, label="accuracy", unit="share")


def point(**more: object) -> Series:
    return Series(style="dots", role="now", x=(day_value(DAY),), y=(0.5,), **more)  # type: ignore[arg-type]


def test_changes_are_listed_once_after_the_points():
    taste = Mark(style="line", role="since", x=(day_value(DAY),) * 2, name="taste changed")
    words = Mark(style="word", role="small", y=(0.5, 0.5), label="too few")
    shade = Mark(style="area", role="now", x=(0, 1), label="a bin")
    first, second = (
        Panel(title=title, x=DAYS, y=SHARE, series=(point(name="one"),), marks=marks)
        for title, marks in (
            ("first", (taste.model_copy(update={"label": "of everybody"}), words, shade)),
            ("second", (taste,)),
        )
    )
    chart = Chart(kind="test", title="two panels", alt="", panels=(first, None, second))
    assert list(list_rows(chart, write_words)) == [
        ChartRow("first", "one", "2026-01-01", "50.0%"),
        ChartRow("second", "one", "2026-01-01", "50.0%"),
        ChartRow("", "taste changed: of everybody", "2026-01-01", ""),
        ChartRow("first", "too few", "", "50.0%"),
    ]


def test_the_table_has_no_empty_column_and_escapes_names():
    series = point(name="<b>", low=(0.4,), high=(None,), n=(1200,), links=("/votes?a=1&b=2",))
    chart = Chart(kind="t", title="one", alt="", panels=(Panel(x=DAYS, y=SHARE, series=(series,)),))
    table = render_table(chart)
    assert not any(head in table for head in ("Panel", "95% high", "Evidence"))
    assert all(text in table for text in ("&lt;b&gt;", "1,200"))
    assert 'href="/votes?a=1&amp;b=2">50.0%</a>' in table


def test_a_chart_without_panels_has_no_rows():
    chart = Chart(kind="t", title="none", alt="", panels=(), notes=("no votes yet",))
    assert "<td>" not in render_table(chart)

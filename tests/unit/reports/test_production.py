"""The chart of models in production: a figure without an interval stands alone."""

from datetime import date, timedelta

from rlhf_pipeline.core.monitoring import MetricPoint
from rlhf_pipeline.core.records import utc_now
from rlhf_pipeline.reports.draw import draw_svg
from rlhf_pipeline.reports.production import chart_production

DAY = date(2026, 1, 2)


def put(n_day: int, low: float | None, high: float | None) -> MetricPoint:
    return MetricPoint(
        day=DAY + timedelta(days=n_day),
        name="production.quality",
        labels={"model": "acme@1"},
        n=40,
        value=0.6,
        low=low,
        high=high,
        measured_at=utc_now(),
    )


def test_a_figure_without_interval_has_no_ends() -> None:
    chart = chart_production([put(0, None, None), put(1, 0.5, 0.7)], DAY, DAY + timedelta(days=1))
    (panel,) = chart.panels
    assert panel is not None
    (series,) = panel.series
    assert (series.low, series.high) == ((None, 0.5), (None, 0.7))
    assert "NaN" not in chart.model_dump_json()
    assert "<svg" in draw_svg(chart)
    bare = chart_production([put(0, None, None)], DAY, DAY).panels[0]
    assert bare is not None
    assert (bare.series[0].low, bare.series[0].y) == ((), (0.6,))

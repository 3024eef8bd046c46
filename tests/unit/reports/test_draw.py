"""A chart is drawn the same as SVG and as PNG, survives JSON, and no text in it becomes markup."""

import re

import pytest

from rlhf_pipeline.core.records import Interval
from rlhf_pipeline.reports.chart import (
    Axis,
    Chart,
    Mark,
    Panel,
    Tick,
    point_series,
)
from rlhf_pipeline.reports.draw import draw_legend, draw_png, draw_svg
from rlhf_pipeline.reports.layout import Scale

NASTY = "<script>alert(1)</script> & \x00\ud800"
HALF = Interval(value=0.5, low=0.4, high=0.6, n=9)


def chart(**panel: object) -> Chart:
    axis = Axis(low=0, high=1, label="share", ticks=(Tick(value=0.5, label="half"),))
    fields = {"x": axis, "y": axis, "series": (point_series([0.5], [HALF], role="now", name="n"),)}
    return Chart(
        kind="test", title="A title", alt="Words", panels=(Panel(**(fields | panel)),), width=400
    )


def test_a_scale_maps_ends_to_ends_and_keeps_outliers_at_an_end():
    scale = Scale(0, 10, 100, 200)
    assert [scale(value) for value in (0, 5, 10, -3, 99)] == [100, 150, 200, 100, 200]
    assert Scale(10, 0, 100, 200)(10) == 100
    assert Scale(1, 1, 100, 200)(1) == 100


def test_a_point_lies_in_the_middle_of_its_interval():
    source = draw_svg(chart())
    dot = re.search(r'<circle class="dot now" cx="([\d.]+)" cy="([\d.]+)"', source)
    line = re.search(
        r'<line class="whisker now" x1="([\d.]+)" y1="([\d.]+)"[^>]*y2="([\d.]+)"', source
    )
    assert dot is not None
    assert line is not None
    assert dot[1] == line[1]
    assert float(dot[2]) == pytest.approx((float(line[2]) + float(line[3])) / 2, abs=0.1)


def test_chart_escapes_text():
    nasty = chart(title=NASTY, marks=(Mark(style="area", role="now", label=NASTY, link=NASTY),))
    nasty = nasty.model_copy(update={"alt": NASTY, "notes": (NASTY,)})
    for source in (draw_svg(nasty), draw_legend(nasty)):
        assert "<script" not in source
        assert "\x00" not in source
        assert "\ud800" not in source
    assert draw_png(nasty).startswith(b"\x89PNG")


def test_chart_areas_are_accessible_links():
    area = Mark(style="area", role="now", x=(0.2, 0.4), label="ten votes", link="/votes?bin=0.3")
    source = draw_svg(chart(marks=(area,)))
    assert 'role="group"' in source
    assert '<g aria-hidden="true">' in source
    assert '<a href="/votes?bin=0.3" aria-label="ten votes. List them">' in source
    assert 'role="img"' in draw_svg(chart())

"""Reliability diagrams: sides stay apart, bins are links, ceilings name their basis."""

import numpy as np

from rlhf_pipeline.core.records import Interval, ReliabilityBin
from rlhf_pipeline.learn.calibration import PredictedVotes, calibration_by_group, reliability_table
from rlhf_pipeline.reports.calibration import (
    MAX_PANELS,
    chart_groups,
    chart_reliability,
    draw_calibration,
)
from rlhf_pipeline.reports.chart import Chart, Series
from rlhf_pipeline.reports.draw import draw_svg
from tests.unit.learn.calibration.test_by_group import report, rows

CEILING = Interval(value=0.8, low=0.7, high=0.9, n=9)


def bins() -> tuple[ReliabilityBin, ...]:
    return reliability_table(np.linspace(0.5, 0.95, 60), np.tile([1.0, 1.0, 0.0], 20))


def series(chart: Chart, panel: int = 0) -> tuple[Series, ...]:
    chart_panel = chart.panels[panel]
    assert chart_panel is not None
    return chart_panel.series


def test_two_sides_are_drawn_side_by_side_with_their_values():
    before, after = series(chart_reliability({"raw": bins(), "platt": bins()}, CEILING, title="t"))
    assert before.x == after.x
    assert before.offset < 0 < after.offset
    assert (before.role, after.role) == ("ref", "now")


def test_each_bin_of_a_single_side_is_a_link_and_has_its_count():
    chart = chart_reliability(
        {"served": bins()}, CEILING, title="t", link=lambda b: f"/pairs?bin={b.low:.3f}"
    )
    source = draw_svg(chart)
    assert source.count("<a href=") == len(bins())
    first = bins()[0]
    assert f'<a href="/pairs?bin={first.low:.3f}" aria-label="confidence 50% to 55%' in source
    assert series(chart, 1)[0].labels == tuple(str(b.n) for b in bins())


def test_groups_of_any_size_have_panels() -> None:
    p, y, ids, groups = rows({f"g{i}": 8 + i for i in range(MAX_PANELS + 3)})
    all_groups = calibration_by_group(
        PredictedVotes(p, y, ids), groups, ceilings={"source": {"g7": CEILING}}
    )
    for some in (all_groups, all_groups[-1:]):
        pictures = draw_calibration(report(some))
        assert set(pictures) == {"reliability_diagram", "reliability_by_group"}
        assert all(png.startswith(b"\x89PNG") for png in pictures.values())
    assert set(draw_calibration(report(()))) == {"reliability_diagram"}
    chart = chart_groups(report(all_groups))
    assert len(chart.panels) == MAX_PANELS
    assert "3 smaller groups are in the report" in chart.title
    tiny = chart_groups(report(all_groups[-1:])).panels[0]
    assert tiny is not None
    assert [mark.label for mark in tiny.marks if mark.style == "word"] == ["8 pairs: too few"]
    assert tiny.series == ()

import pytest

from rlhf_pipeline.errors import NotEnoughData
from rlhf_pipeline.reports.draw import draw_png
from rlhf_pipeline.reports.training import chart_loss

LOSS = [(i, 1 / i) for i in range(1, 30)]


def test_a_loss_chart_has_a_panel_for_each_curve_that_was_logged():
    chart = chart_loss(
        LOSS, title="dpo", others={"reward margin": [(1, 0.0), (2, 0.5)], "never logged": []}
    )
    assert [panel.y.label for panel in chart.panels] == ["loss", "reward margin"]
    logged, smooth = chart.panels[0].series
    assert logged.y == tuple(value for _, value in LOSS)
    assert smooth.y[1] == pytest.approx((1 + 1 / 2) / 2)


def test_one_step_is_enough_for_a_picture_and_none_is_not():
    assert draw_png(chart_loss([(1, 0.7)], title="sft")).startswith(b"\x89PNG")
    with pytest.raises(NotEnoughData):
        chart_loss([], title="sft")

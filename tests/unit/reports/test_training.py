import pytest

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

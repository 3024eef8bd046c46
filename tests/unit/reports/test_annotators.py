"""Annotators are drawn however many they are, and names stay distinct."""

import pytest

from rlhf_pipeline.feedback.votes.annotators import annotator_figures
from rlhf_pipeline.feedback.votes.joint_model import joint_model
from rlhf_pipeline.reports.annotators import (
    MAX_RELIABILITIES,
    chart_annotators,
)
from rlhf_pipeline.reports.draw import draw_png
from tests.unit.feedback.votes.simulated import simulate


@pytest.mark.parametrize("n", [1, 90])
def test_the_most_doubtful_annotators_are_drawn(n: int):
    truth = simulate(90, n_annotators=n, votes_each=1)
    figures = annotator_figures(truth.votes, joint_model(truth.votes))
    chart = chart_annotators(figures)
    (panel,) = chart.panels
    assert panel.series[0].x == tuple(figures["reliability"].head(MAX_RELIABILITIES))
    assert ("more reliable ones left out" in chart.title) == (len(figures) > MAX_RELIABILITIES)
    assert draw_png(chart).startswith(b"\x89PNG")

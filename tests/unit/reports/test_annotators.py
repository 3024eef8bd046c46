"""Annotators are drawn however many they are, and names stay distinct."""

import pytest

from rlhf_pipeline.reports.annotators import (
    MAX_RELIABILITIES,
    chart_annotators,
    chart_annotators_over_time,
)
from rlhf_pipeline.reports.draw import draw_png
from rlhf_pipeline.reports.words import distinct_labels
from rlhf_pipeline.votes.annotators import ANNOTATOR_FIGURES, annotator_figures
from rlhf_pipeline.votes.annotators_over_time import agreement_over_time, annotators_over_time
from rlhf_pipeline.votes.joint_model import joint_model
from tests.unit.votes.simulated import simulate
from tests.unit.votes.test_annotators_over_time import of_world


@pytest.mark.parametrize("n", [1, 90])
def test_the_most_doubtful_annotators_are_drawn(n: int):
    truth = simulate(90, n_annotators=n, votes_each=1)
    figures = annotator_figures(truth.votes, joint_model(truth.votes))
    chart = chart_annotators(figures)
    (panel,) = chart.panels
    assert panel.series[0].x == tuple(figures["reliability"].head(MAX_RELIABILITIES))
    assert ("more reliable ones left out" in chart.title) == (len(figures) > MAX_RELIABILITIES)
    assert draw_png(chart).startswith(b"\x89PNG")


@pytest.mark.filterwarnings("error")
def test_nobody_can_be_drawn_too():
    chart = chart_annotators(ANNOTATOR_FIGURES.empty_frame())
    assert "no annotator has judged anything yet" in [m.label for m in chart.panels[0].marks]
    assert draw_png(chart).startswith(b"\x89PNG")


def test_names_are_shortened_while_they_stay_distinct():
    assert distinct_labels(["ann", "x" * 20 + "y" * 20]) == ["ann", "x" * 12 + "…" + "y" * 11]
    alike = [f"somebody-with-a-long-name-{n}@example.org" for n in range(3)]
    assert distinct_labels(alike) == alike


def test_named_annotators_come_first_over_time():
    cast, shown, _ = of_world()
    figures, together = annotators_over_time(cast, shown), agreement_over_time(cast)
    chart = chart_annotators_over_time(figures, together, ["ann0011", "who never voted"])
    names = [panel.title for panel in chart.panels if panel is not None and panel.title]
    assert names[0].startswith("ann0011  n=")
    assert draw_png(chart).startswith(b"\x89PNG")
    empty = chart_annotators_over_time(figures.head(0), together.head(0))
    assert draw_png(empty).startswith(b"\x89PNG")

"""Figures of a group of votes: by the address alone, and never mixed with those of all."""

from datetime import date, timedelta

from rlhf_pipeline.core.monitoring import MetricPoint
from rlhf_pipeline.reports.alignment import GROUP_METRICS
from rlhf_pipeline.reports.chart import Chart
from rlhf_pipeline.web.alignment.queries import ONE_GROUP
from tests.web.conftest import NOON, Web
from tests.web.test_preferences import cast

DAY = date(2026, 1, 2)
PATH = "/charts/alignment"
MODEL = "demo.reward_model@1"


def put(web: Web, value: float, *, n_day: int = 0, model: str = MODEL, **labels: str) -> None:
    names = [*GROUP_METRICS] if labels else [*GROUP_METRICS.values()]
    web.store.metric_points.put(
        [
            MetricPoint(
                day=DAY + timedelta(days=n_day),
                name=name,
                labels={"reward_model": model, **labels},
                n=50,
                value=value,
                low=value - 0.1,
                high=value + 0.1,
                measured_at=NOON,
            )
            for name in names
        ]
    )


def accuracy(chart: Chart) -> list[float]:
    return [
        y
        for panel in chart.panels
        if panel
        for series in panel.series
        if series.name == "accuracy"
        for y in series.y
    ]


def read(reader, **params: str) -> Chart:
    answer = reader.get(PATH, params=params)
    assert answer.status_code == 200, answer.text
    return Chart.model_validate(answer.json())


def test_a_group_has_its_own_figures_in_the_chart(web: Web):
    put(web, 0.7)
    put(web, 0.72, n_day=1)
    put(web, 0.6, by="category", group="coding")
    put(web, 0.62, n_day=1, by="category", group="coding")
    put(web, 0.9, by="source", group="coding")  # a data set of the same name
    verdict = {"name": "drift.verdict", "labels": {"space": "overall"}, "value": 1}
    web.store.metric_points.put([MetricPoint(day=DAY, measured_at=NOON, **verdict)])
    reader = web.client("auditor")
    assert accuracy(read(reader)) == [0.7, 0.72]
    coding = read(reader, category="coding")
    assert accuracy(coding) == [0.6, 0.62]
    assert not any(panel.title.startswith("Worst verdict") for panel in coding.panels if panel)
    window = "/votes?since=2025-12-27&until=2026-01-02&category=coding"
    assert coding.panels[0].series[0].links[0] == window
    assert accuracy(read(reader, source="coding")) == [0.9]
    one_day = {"since": DAY.isoformat(), "until": DAY.isoformat()}
    assert accuracy(read(reader, category="coding", **one_day)) == [0.6]
    assert read(reader, category="coding", model="demo.reward_model@9").panels == ()


def test_group_without_figures_says_why(web: Web):
    put(web, 0.7)
    cast(web, 3, people=("solo",), origin="api")
    reader = web.client("auditor")
    (note,) = read(reader, category="poetry").notes
    assert note.startswith("No figures of category 'poetry' in these days.")
    (note,) = read(reader, group="api").notes
    assert note.startswith("Withheld: the group 'api' has 1 annotator;")


def test_two_groups_at_once_are_refused(web: Web):
    put(web, 0.7)
    answer = web.client("auditor").get(PATH, params={"category": "coding", "source": "hh"})
    assert (answer.status_code, answer.json()["detail"]) == (422, ONE_GROUP)
    assert [error["path"] for error in answer.json()["errors"]] == [
        "query.category",
        "query.source",
    ]

"""Chart records: the same figures as the metric points, once per change, for those who may."""

import csv
import io
from datetime import date, timedelta

from rlhf_pipeline.core.monitoring import MetricPoint
from rlhf_pipeline.reports.chart import Axis, Chart, Panel, Series, Tick
from rlhf_pipeline.web.chart_answers import write_csv
from rlhf_pipeline.web.rendering import STATIC
from tests.web.conftest import NOON, Web

DAY = date(2026, 1, 2)
PATH = "/charts/alignment"


def put(web: Web, n_days: int = 3, model: str = "demo.reward_model@1") -> None:
    web.store.metric_points.put(
        [
            MetricPoint(
                day=DAY + timedelta(days=n),
                name=name,
                labels={"reward_model": model},
                n=50 + n,
                value=value + n / 100,
                low=value - 0.1,
                high=value + 0.1,
                measured_at=NOON,
            )
            for n in range(n_days)
            for name, value in (("model.accuracy", 0.7), ("model.accuracy_ceiling", 0.8))
        ]
    )


def test_charts_refuse_days_in_the_wrong_order(web: Web):
    wrong = {"since": "2026-01-03", "until": "2026-01-02"}
    answer = web.client("auditor").get(PATH, params=wrong)
    assert (answer.status_code, answer.json()["errors"][0]["path"]) == (422, "query.until")


def test_charts_use_every_filter_of_the_url(web: Web):
    script = (STATIC / "charts" / "chart.js").read_text(encoding="utf-8")
    passed_on = set(
        script.partition("const FILTERS =")[2].partition('"')[2].partition('"')[0].split()
    )
    paths = web.client("auditor").get("/openapi.json").json()["paths"]
    filters = {
        parameter["name"]
        for path, methods in paths.items()
        if "/charts/" in path
        for parameter in methods["get"].get("parameters", ())
        if parameter["in"] == "query" and not parameter.get("required")
    }
    assert filters - {"format"} <= passed_on


def test_chart_is_served_as_csv_table_and_picture(web: Web):
    put(web)
    reader = web.client("auditor")
    answers = {each: reader.get(PATH, params={"format": each}) for each in ("csv", "html", "png")}
    assert [answer.headers["content-type"].partition(";")[0] for answer in answers.values()] == [
        *("text/csv", "text/html", "image/png")
    ]
    assert ",accuracy,2026-01-02,0.7,0.6" in answers["csv"].text
    assert '">70.0%</a>' in answers["html"].text
    assert answers["png"].headers["content-disposition"].endswith('.png"')
    assert reader.get(PATH, params={"format": "pdf"}).status_code == 422
    assert reader.get("/metrics/points", params={"format": "csv"}).status_code == 422


def test_csv_has_exact_numbers_and_no_formula():
    names = Axis(low=1, high=0, label="space", ticks=(Tick(value=0, label="errors"),))
    slope = Axis(low=-1, high=1, label="slope")
    series = Series(style="dots", role="now", name="=1+1", along="x", x=(-1 / 3,), y=(0,), n=(7,))
    chart = Chart(
        kind="t", title="one", alt="", panels=(Panel(x=slope, y=names, series=(series,)),)
    )
    (row,) = csv.DictReader(io.StringIO(write_csv(chart)))
    assert (row["series"], row["y"], row["n"], row["low"]) == ("'=1+1", "errors", "7", "")
    assert float(row["x"]) == -1 / 3

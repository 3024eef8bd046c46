"""The timeline and the clusters as charts: what they mark, label and leave out."""

import struct
from datetime import date

import numpy as np
import pandas as pd
import pytest

from rlhf_pipeline.drift.report import DriftParams
from rlhf_pipeline.drift.stream import scan
from rlhf_pipeline.errors import NotEnoughData
from rlhf_pipeline.records import DriftEvent, Interval
from rlhf_pipeline.reports.chart import Chart, Mark
from rlhf_pipeline.reports.draw import draw_png
from rlhf_pipeline.reports.drift import chart_timeline

MODEL = "demo.reward_model@1"
CEILING = Interval(value=0.8, low=0.77, high=0.83, n=200)


def errors_frame() -> pd.DataFrame:
    rng = np.random.default_rng(0)
    error = np.concatenate([rng.random(900) < 0.25, rng.random(300) < 0.5]).astype(int)
    return pd.DataFrame(
        {
            "seq": np.arange(1, 1201),
            "day": [f"2026-01-{1 + i // 300:02d}" for i in range(1200)],
            "error": error,
        }
    )


def timeline() -> Chart:
    result = scan(errors_frame(), model_version=MODEL)
    failed = DriftEvent(
        kind="calibration",
        model_version=MODEL,
        detector="slope",
        params_hash="h",
        stream="calibration",
        seq=1200,
        day=date(2026, 1, 4),
        evidence={},
    )
    return chart_timeline(
        errors_frame(),
        [*result.events, failed],
        result.warnings,
        models={1: MODEL, 700: "next@2"},
        noise_ceiling=CEILING,
    )


def lines(chart: Chart, *roles: str) -> list[Mark]:
    panel = chart.panels[-1]
    assert panel is not None
    return [m for m in panel.marks if m.style == "line" and m.role in roles]


def test_the_timeline_is_a_png_of_readable_size_and_the_same_each_time():
    png = draw_png(timeline())
    width, height = struct.unpack(">II", png[16:24])
    assert 1000 < width < 1100
    assert 400 < height < 600
    assert png == draw_png(timeline())


def test_the_rate_starts_afresh_with_each_model():
    rates = timeline().panels[1].series
    starts = [series.x[0] for series in rates]
    assert starts == pytest.approx([30, 729], abs=3)
    assert [mark.label for mark in lines(timeline(), "model")] == [MODEL, "next@2"]


def test_signals_stand_in_the_lane_of_their_detector():
    lanes = timeline().panels[0]
    names = [tick.label for tick in lanes.y.ticks]
    assert names == ["rise test", "DDM", "ADWIN", "HDDM-A", "calibration"]
    fired = next(series for series in lanes.series if series.role == "fired")
    assert (1200, names.index("calibration")) in set(zip(fired.x, fired.y, strict=True))
    assert len(fired.x) > 1
    other = scan(errors_frame(), model_version=MODEL, params=DriftParams(detectors=["cusum"]))
    lanes = chart_timeline(errors_frame(), other.events).panels[0]
    assert [tick.label for tick in lanes.y.ticks] == ["CUSUM", "calibration"]


def test_a_timeline_of_one_vote_is_reported_as_too_short():
    marks = chart_timeline(errors_frame().iloc[:1]).panels[1].marks
    assert "fewer than 30 votes: no rate is drawn yet" in [mark.label for mark in marks]


def test_there_is_no_timeline_without_votes():
    with pytest.raises(NotEnoughData, match="no judged votes"):
        chart_timeline(errors_frame().iloc[:0])


def test_missing_days_are_counted_and_years_named_if_there_are_several():
    days = ["2016-02-06", "2016-02-07", "2016-02-11", "2023-05-18"]
    errors = pd.DataFrame(
        {
            "seq": range(1, 401),
            "day": [days[i // 100] for i in range(400)],
            "error": [i % 2 for i in range(400)],
        }
    )
    chart = chart_timeline(errors)
    borders = lines(chart, "day", "perfect")
    assert [mark.label for mark in borders] == ["", "3 days without", "2,652 days without"]
    assert [tick.label for tick in chart.panels[1].x.ticks] == [day[2:] for day in days]
    one_year = chart_timeline(errors.iloc[:300]).panels[1].x.ticks
    assert [tick.label for tick in one_year] == ["02-06", "02-07", "02-11"]


def test_a_late_vote_does_not_move_its_day():
    errors = pd.DataFrame(
        {"seq": range(1, 201), "day": ["2026-01-01"] * 100 + ["2026-01-02"] * 100, "error": 0}
    )
    errors.loc[199, "day"] = "2026-01-01"
    (border,) = lines(chart_timeline(errors), "day")
    assert border.x is not None
    assert border.x[0] == pytest.approx(100.5, abs=1.5)


@pytest.mark.parametrize(
    ("ceiling", "words"),
    [
        (CEILING, "best reachable, from the noise ceiling"),
        (
            CEILING.model_copy(update={"basis": "repeats"}),
            "best reachable, from the noise ceiling (repeats)",
        ),
        (None, "best reachable unknown: no comparison has two votes or a repeat"),
    ],
)
def test_the_best_reachable_rate_names_its_source(ceiling: Interval | None, words: str):
    chart = chart_timeline(errors_frame(), noise_ceiling=ceiling)
    assert words in [*(entry.name for entry in chart.legend), *chart.notes]


def test_the_best_reachable_is_an_error_rate():
    (best,) = lines(timeline(), "ceiling")
    assert best.y == (pytest.approx(0.2), pytest.approx(0.2))

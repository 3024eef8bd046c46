"""The timeline and the clusters as charts: what they mark, label and leave out."""

import struct
from datetime import date

import numpy as np
import pandas as pd
import pytest

from rlhf_pipeline.core.records import DriftEvent, Interval
from rlhf_pipeline.reports.chart import Chart, Mark
from rlhf_pipeline.reports.draw import draw_png
from rlhf_pipeline.reports.drift import chart_timeline
from rlhf_pipeline.watch.drift.report import DriftParams
from rlhf_pipeline.watch.drift.stream import scan

MODEL = "demo.reward_model@1"
CEILING = Interval(value=0.8, low=0.77, high=0.83, n=200)


def errors_frame() -> pd.DataFrame:
    rng = np.random.default_rng(0)
    error = np.concatenate([rng.random(900) < 0.25, rng.random(300) < 0.5]).astype(int)
    return pd.DataFrame(
        {
            "seq": np.arange(1, 1201),
            "day": [f"2026-01-{1 + i // 300:02d}" for i in range(1200)],
            "annotator_id": [f"p{i % 7}" for i in range(1200)],
            "comparison_id": [f"c{i}" for i in range(1200)],
            "category": "all",
            "expected_error": 0.25,
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
        noise_ceiling=CEILING,
    )


def lines(chart: Chart, *roles: str) -> list[Mark]:
    panel = chart.panels[-1]
    assert panel is not None
    return [m for m in panel.marks if m.style == "line" and m.role in roles]


def test_timeline_is_a_reproducible_png():
    png = draw_png(timeline())
    width, height = struct.unpack(">II", png[16:24])
    assert 1000 < width < 1100
    assert 400 < height < 600
    assert png == draw_png(timeline())


def test_signals_are_in_the_lane_of_their_detector():
    lanes = timeline().panels[0]
    names = [tick.label for tick in lanes.y.ticks]
    assert names == ["sequential test", "DDM", "ADWIN", "HDDM-A", "calibration"]
    fired = next(series for series in lanes.series if series.role == "fired")
    assert (1200, names.index("calibration")) in set(zip(fired.x, fired.y, strict=True))
    assert len(fired.x) > 1
    other = scan(errors_frame(), model_version=MODEL, params=DriftParams(detectors=["cusum"]))
    lanes = chart_timeline(errors_frame(), other.events).panels[0]
    assert [tick.label for tick in lanes.y.ticks] == ["CUSUM", "calibration"]


def test_a_late_vote_does_not_move_its_day():
    errors = pd.DataFrame(
        {"seq": range(1, 201), "day": ["2026-01-01"] * 100 + ["2026-01-02"] * 100, "error": 0}
    )
    errors.loc[199, "day"] = "2026-01-01"
    (border,) = lines(chart_timeline(errors), "day")
    assert border.x is not None
    assert border.x[0] == pytest.approx(100.5, abs=1.5)


def test_ceiling_is_drawn_as_an_error_rate():
    (best,) = lines(timeline(), "ceiling")
    assert best.y == (pytest.approx(0.2), pytest.approx(0.2))

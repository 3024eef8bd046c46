"""The timeline is a picture of the asked size, the same every time, and refuses to draw nothing."""

import struct
from datetime import date

import numpy as np
import pandas as pd
import pytest
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from rlhf_pipeline.drift.plots import _day_labels, _draw_ceiling, _draw_days, draw_drift_timeline
from rlhf_pipeline.drift.stream import scan
from rlhf_pipeline.errors import NotEnoughData
from rlhf_pipeline.records import DriftEvent, Interval

MODEL = "demo.reward_model@1"


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


def picture() -> bytes:
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
    ceiling = Interval(value=0.8, low=0.77, high=0.83, n=200)
    return draw_drift_timeline(
        errors_frame(),
        [*result.events, failed],
        result.warnings,
        models={1: MODEL, 700: "next@2"},
        noise_ceiling=ceiling,
    )


def test_the_timeline_is_a_png_of_readable_size_and_the_same_each_time():
    made = picture()
    assert made[:8] == b"\x89PNG\r\n\x1a\n"
    assert struct.unpack(">II", made[16:24]) == (1045, 475)
    assert made == picture()


def test_a_timeline_of_one_vote_can_be_drawn():
    assert draw_drift_timeline(errors_frame().iloc[:1])


def test_there_is_no_timeline_without_votes():
    with pytest.raises(NotEnoughData, match="No judged votes"):
        draw_drift_timeline(errors_frame().iloc[:0])


def test_days_that_are_missing_are_said_and_years_are_named_where_they_change():
    days = ["2016-02-06", "2016-02-07", "2016-02-11", "2023-05-18"]
    errors = pd.DataFrame(
        {
            "seq": range(1, 401),
            "day": [days[i // 100] for i in range(400)],
            "error": [i % 2 for i in range(400)],
        }
    )
    axes = drawn(errors)
    assert [text.get_text() for text in axes.texts] == ["3 days without", "2652 days without"]
    assert _day_labels(days) == ["02-06\n2016", "02-07", "02-11", "05-18\n2023"]
    assert _day_labels(days[:3]) == ["02-06", "02-07", "02-11"]
    assert len(axes.lines) == 3  # where a new day begins


def test_a_late_vote_does_not_move_its_day():
    errors = pd.DataFrame(
        {"seq": range(1, 201), "day": ["2026-01-01"] * 100 + ["2026-01-02"] * 100, "error": 0}
    )
    errors.loc[199, "day"] = "2026-01-01"
    assert drawn(errors).lines[0].get_xdata()[0] == pytest.approx(100.5, abs=1.5)


def test_the_best_reachable_says_what_it_is_from():
    axes = Figure().subplots()
    ceiling = Interval(value=0.8, low=0.77, high=0.83, n=200)
    for said in (ceiling, ceiling.model_copy(update={"basis": "repeats"}), None):
        _draw_ceiling(axes, said)
    assert axes.get_legend_handles_labels()[1] == [
        "best reachable (noise ceiling)",
        "best reachable (noise ceiling from repeats)",
        "best reachable unknown: no two votes overlap, and nobody judged one again",
    ]


def drawn(errors: pd.DataFrame) -> Axes:
    axes = Figure().subplots()
    _draw_days(axes, errors)
    return axes

"""Calibration over time on the day's page: the picture has its counts, the table every window, and
what is missing is said in words.
"""

import re
from dataclasses import replace

import pytest

from rlhf_pipeline.core.records import Interval
from rlhf_pipeline.learn.calibration.calibration_windows import CalibrationWindow, new_models
from rlhf_pipeline.reports.calibration import chart_windows
from rlhf_pipeline.reports.draw import draw_svg
from rlhf_pipeline.reports.drift_page import render_drift_page
from tests.unit.reports.test_drift_page import Page, evidence

LABELS = ("demo.reward_model@1", "demo.reward_model@2")


def interval(value: float, n: int, half: float = 0.04, **more: object) -> Interval:
    return Interval(
        value=value, low=max(0.0, value - half), high=min(1.0, value + half), n=n, **more
    )


def window(i: int, n: int = 300, n_comparisons: int = 100, **more: object) -> CalibrationWindow:
    fields = {
        "day": f"2026-01-{i + 7:02d}",
        "first_day": f"2026-01-{i + 1:02d}",
        "n_votes": n,
        "n_comparisons": n_comparisons,
        "n_prompts": n_comparisons // 2,
        "reward_models": LABELS[:1] if i < 6 else LABELS if i < 12 else LABELS[1:],
        "last_seq": 300 * (i + 1),
        "accuracy": interval(0.7 - 0.01 * i, n),
        "noise_ceiling": interval(0.83, n, 0.02),
        "ece": interval(0.02 + 0.005 * i, n, 0.02),
        "brier": interval(0.19 + 0.004 * i, n, 0.02),
    }
    return CalibrationWindow(**(fields | more))


NO_FIGURES = {"accuracy": None, "noise_ceiling": None, "ece": None, "brier": None}
NOTHING = {
    **NO_FIGURES,
    "n_votes": 0,
    "n_comparisons": 0,
    "n_prompts": 0,
    "reward_models": (),
    "last_seq": None,
}


@pytest.fixture
def windows() -> list[CalibrationWindow]:
    """Twenty, of which one holds nothing and one too little."""
    return [
        window(
            i,
            **(
                NOTHING
                if i == 2
                else {**NO_FIGURES, "n_votes": 9, "n_comparisons": 3}
                if i == 3
                else {}
            ),
        )
        for i in range(20)
    ]


def test_the_page_has_the_series_as_a_picture_with_counts_and_as_a_table(windows) -> None:
    source = render_drift_page(replace(evidence(), over_time=windows))
    page = Page(source)
    assert page.open == []
    assert "calibration-over-time" in page.attributes("id")
    part = page.text[page.text.index("Calibration over time") :]
    assert part.index(
        "2026-01-26 300 on 100 comparisons 0.510 0.470 to 0.550 0.830 0.810 to 0.850"
    ) < part.index("2026-01-07 300 on 100 comparisons")
    head = (
        "Window up to",
        "Votes",
        "Share predicted right",
        "Noise ceiling",
        "ECE",
        "Brier score",
        "Reward model",
    )
    assert f"{' '.join(head)} 2026-01-26" in part
    assert (
        len(re.findall(r"2026-01-\d\d \d+ on \d+ comparisons (?:0\.\d|too few|nothing)", part))
        == 20
    )
    assert "2026-01-09 0 on 0 comparisons nothing was judged – – – –" in part
    assert "2026-01-10 9 on 3 comparisons too few – – – reward_model@1" in part
    assert f"{LABELS[1]} from here" in part
    pictures = [
        attributes
        for tag, attributes in page.elements
        if tag == "svg" and attributes.get("aria-hidden") != "true"
    ]
    assert len(pictures) == 5
    assert "number of votes, window by window" in pictures[-1]["aria-label"]
    assert len(source.encode()) < 150_000


def test_every_figure_has_an_interval_and_every_window_a_count(windows) -> None:
    source = draw_svg(chart_windows(windows))
    measured = [w for w in windows if w.brier is not None]
    assert (
        source.count('class="dot now"') == source.count('class="whisker now"') == 3 * len(measured)
    )
    assert source.count('class="ceiling-band"') == len(measured)
    assert source.count('class="bar now"') == len(windows)
    assert not re.search(r"\bnan\b", source)


@pytest.mark.parametrize(
    ("figures", "words"),
    [
        ((), "Too little data. No vote has met a prediction in the windows"),
        ([window(0, **NOTHING)], "Too little data. No vote has met a prediction in the windows"),
        (
            "Left out: a day's frames cannot be read. votes: cannot read x.",
            "Left out. a day's frames cannot be read. votes: cannot read x.",
        ),
    ],
)
def test_missing_figures_are_stated(figures, words: str) -> None:
    assert words in Page(render_drift_page(replace(evidence(), over_time=figures))).text


def test_ceiling_from_repeats_and_few_prompts_are_named() -> None:
    sparse = window(
        1, noise_ceiling=interval(0.8, 20, basis="repeats"), brier=interval(0.2, 20, few_groups=2)
    )
    text = Page(render_drift_page(replace(evidence(), over_time=[sparse]))).text
    assert "0.800 0.760 to 0.840 from repeats" in text
    assert "0.200 0.160 to 0.240 within 2 groups" in text


def test_new_model_is_marked_at_its_first_vote(windows) -> None:
    assert new_models(windows) == [(6, LABELS[1])]
    assert new_models([]) == []

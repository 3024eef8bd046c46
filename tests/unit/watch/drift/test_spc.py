"""Control charts: subgroups, baseline, rules, and the false alarms that are shown beside them."""

import numpy as np
import pandas as pd
import pytest

from rlhf_pipeline.watch.drift.spc import (
    CHARTS,
    ControlChartParams,
    break_rules,
    control_charts,
    fit_baseline,
    judge_subgroups,
    split_into_subgroups,
)

PARAMS = ControlChartParams()


def errors_frame(*stretches: tuple[int, float], seed: int = 0) -> pd.DataFrame:
    rng = np.random.default_rng(seed)
    error = np.concatenate([rng.random(n) < rate for n, rate in stretches]).astype(float)
    days = [f"2026-01-{1 + i // 250:02d}" for i in range(len(error))]
    return pd.DataFrame({"seq": 3 * np.arange(len(error)) + 1, "day": days, "error": error})


def subgroups(n: int, *n_errors: int) -> pd.DataFrame:
    return pd.DataFrame({"n": n, "n_errors": n_errors, "day": "2026-01-01"})


def test_subgroups_are_consecutive_and_complete():
    frame = errors_frame((270, 0.3))
    subgroups = split_into_subgroups(frame.sample(frac=1, random_state=0), 100)
    assert subgroups["first_seq"].tolist() == [1, 301]
    assert subgroups["last_seq"].tolist() == [298, 598]
    assert subgroups["n_errors"].tolist() == [
        frame["error"][:100].sum(),
        frame["error"][100:200].sum(),
    ]


def test_limits_are_three_binomial_deviations_around_the_baseline():
    baseline = fit_baseline(subgroups(100, 20, 20, 20, 20, 20))
    assert (baseline.centre, baseline.dispersion, baseline.n_votes) == (0.2, 1.0, 500)
    points = judge_subgroups(subgroups(100, 20, 20, 20, 20, 20, 32, 33, 7), baseline, PARAMS)
    assert points["high"].tolist() == pytest.approx([0.32] * 8)
    assert points["low"].tolist() == pytest.approx([0.08] * 8)
    marked = ["we_1" in rules for rules in points["rules"]]
    assert marked == [False] * 6 + [True, True]


@pytest.mark.parametrize(
    ("rule", "z", "at"),
    [
        ("we_1", [0, 3.1, 0, -3.1, 2.9], [1, 3]),
        ("we_2", [2.1, 0, 2.1, -2.1, 0, -2.1, 2.1], [2, 5]),
        ("we_3", [1.1, 1.1, 0, 1.1, 1.1, 0, 1.1, -1.1], [4]),
        ("we_4", [0.1] * 9 + [-0.1] * 8, [7, 8, 16]),
        ("ewma", [2] * 5 + [-2], [2, 3, 4]),
    ],
)
def test_each_rule_marks_the_point_that_completes_its_pattern(rule, z, at):
    broken = break_rules(np.array(z, dtype=float), PARAMS)[rule]
    assert np.flatnonzero(broken).tolist() == at


def test_a_rise_is_marked_and_the_baseline_is_never_judged():
    charts = control_charts(errors_frame((1200, 0.25), (600, 0.45)), PARAMS)
    assert len(charts.points) == 18
    assert not any(charts.points.loc[charts.points["is_baseline"], "rules"])
    for chart in CHARTS:
        assert charts.find_marked(chart)["first_seq"].min() >= 3 * 1200
        assert len(charts.find_marked(chart)) >= 3


def test_run_lengths_equal_the_textbook():
    """Champ, Woodall 1987 for the Western Electric rules; Lucas, Saccucci 1990 for EWMA."""
    z = np.random.default_rng(0).normal(size=(1500, 1500))
    broken = break_rules(z, ControlChartParams(spc_ewma_limit=2.86))
    for chart, expected in {"p_chart": 370.4, "ewma": 360, "western_electric": 91.75}.items():
        marked = np.logical_or.reduce([broken[rule] for rule in CHARTS[chart]])
        rate = (
            marked.any(axis=1).sum()
            / np.where(marked.any(axis=1), marked.argmax(axis=1) + 1, z.shape[1]).sum()
        )
        assert 1 / rate == pytest.approx(expected, rel=0.08)

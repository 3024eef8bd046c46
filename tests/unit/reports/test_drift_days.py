"""The chart of drift over days: one lane per detector, decisions, and days of another champion."""

from datetime import date, timedelta

from rlhf_pipeline.core.records import Verdict
from rlhf_pipeline.reports.chart import day_value
from rlhf_pipeline.reports.draw import draw_svg
from rlhf_pipeline.reports.drift_days import (
    BY_PROMOTION,
    DriftTest,
    chart_drift_days,
    find_promotion_shifts,
)

FIRST = date(2026, 1, 1)
LAST = FIRST + timedelta(days=3)


def check(n_day: int, space: str, detector: str, verdict: Verdict, model: str = "m@1") -> DriftTest:
    return DriftTest(
        day=FIRST + timedelta(days=n_day),
        space=space,
        detector=detector,
        model_version=model,
        verdict=verdict,
        statistic=0.25,
        threshold=0.2,
        p_value=0.0001,
        effect=0.1,
        n_reference=30,
        n_current=40 + n_day,
    )


def test_each_verdict_lies_in_its_lane_with_evidence_count_and_link():
    tests = [
        check(0, "scores", "ks", Verdict.STABLE),
        check(0, "overall", "confirmation", Verdict.STABLE),
        check(1, "errors", "ks", Verdict.DRIFT, "m@2"),
    ]
    chart = chart_drift_days(
        tests,
        FIRST,
        LAST,
        decisions=[(LAST, "retrained", "/decisions/1")],
        policies={FIRST: "p@1", FIRST + timedelta(days=1): "p@2"},
        link=lambda day: f"/drift/{day}",
    )
    decisions, verdicts = chart.panels
    assert decisions is not None
    assert verdicts is not None
    assert (decisions.series[0].evidence, decisions.series[0].links) == (
        ("retrained",),
        ("/decisions/1",),
    )
    assert [tick.label for tick in verdicts.y.ticks] == ["overall: verdict", "errors: KS"]
    (drift,) = (series for series in verdicts.series if series.name == "drift")
    assert (drift.x, drift.y, drift.n) == ((day_value(FIRST) + 1,), (1.0,), (41,))
    assert drift.evidence == ("statistic 0.25, threshold 0.2, effect 0.1, p < 0.001",)
    assert drift.links == ("/drift/2026-01-02",)
    (mark,) = decisions.marks
    assert (mark.label, mark.x) == ("reward model @2, policy @2", (day_value(FIRST) + 1,) * 2)
    drawn = draw_svg(chart)
    assert (drawn.count('class="diamond now"'), drawn.count('class="fired"')) == (1, 1)


def test_quiet_tests_are_folded_and_the_first_signal_leads():
    tests = [
        check(0, "overall", "confirmation", Verdict.STABLE),
        check(0, "errors", "ddm", Verdict.STABLE),
        check(1, "errors", "ddm", Verdict.DRIFT),
        check(0, "prompt_mix", "chi_squared", Verdict.WARNING),
        *(check(day, "scores", "ks", Verdict.STABLE) for day in (0, 1)),
    ]
    chart = chart_drift_days(tests, FIRST, LAST)
    assert chart.panels[0] is not None
    labels = [tick.label for tick in chart.panels[0].y.ticks]
    assert labels == ["overall: verdict", "kinds of prompts: χ²", "errors: DDM"]
    assert chart.notes == ("1 other test found nothing; choose a space to see them",)
    whole = chart_drift_days(tests, FIRST, LAST, is_folded=False)
    assert whole.panels[0] is not None
    assert len(whole.panels[0].y.ticks) == 4


def test_a_promotion_explains_a_shift_of_texts_on_its_first_day():
    policies = {FIRST: "p@1", FIRST + timedelta(days=1): "p@2"}
    tests = [
        check(0, "scores", "ks", Verdict.STABLE),
        check(1, "scores", "ks", Verdict.DRIFT),
        check(1, "prompt_text", "ks", Verdict.DRIFT),
        check(2, "scores", "ks", Verdict.DRIFT),
    ]
    day = FIRST + timedelta(days=1)
    assert find_promotion_shifts(tests, policies) == {(day, "scores", "ks")}
    (panel,) = chart_drift_days(tests, FIRST, LAST, policies=policies).panels
    assert panel is not None
    assert {each.name for each in panel.series} == {"stable", BY_PROMOTION, "drift"}
    of_one_policy = {day: "p@1" for day in policies}
    assert find_promotion_shifts(tests, of_one_policy) == set()


def test_days_without_a_report_name_its_asset():
    chart = chart_drift_days([], FIRST, LAST)
    assert (chart.panels, "feedback" in chart.notes[0]) == ((), True)

"""The chart of drift over days: one lane per detector, decisions, and days of another champion."""

from datetime import date, timedelta

from rlhf_pipeline.api_types.drift import DriftTest
from rlhf_pipeline.records import Verdict
from rlhf_pipeline.reports.chart import day_value
from rlhf_pipeline.reports.draw import draw_svg
from rlhf_pipeline.reports.drift_days import chart_drift_days

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
        check(1, "scores", "ks", Verdict.DRIFT, "m@2"),
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
    assert [tick.label for tick in verdicts.y.ticks] == ["overall: verdict", "scores: KS"]
    (drift,) = (series for series in verdicts.series if series.name == "drift")
    assert (drift.x, drift.y, drift.n) == ((day_value(FIRST) + 1,), (1.0,), (41,))
    assert drift.evidence == ("statistic 0.25, threshold 0.2, effect 0.1, p < 0.001",)
    assert drift.links == ("/drift/2026-01-02",)
    (mark,) = decisions.marks
    assert (mark.label, mark.x) == ("reward model @2, policy @2", (day_value(FIRST) + 1,) * 2)
    drawn = draw_svg(chart)
    assert (drawn.count('class="diamond now"'), drawn.count('class="fired"')) == (1, 1)


def test_days_without_a_report_say_what_writes_one():
    chart = chart_drift_days([], FIRST, LAST)
    assert (chart.panels, "feedback" in chart.notes[0]) == ((), True)

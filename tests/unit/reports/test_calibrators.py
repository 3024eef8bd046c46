"""Charts of calibrators: both curves of a group with counts, and errors without their bias."""

from rlhf_pipeline.core.records import (
    CalibrationReport,
    DimensionCalibration,
    GroupCalibration,
)
from rlhf_pipeline.learn.calibration import PredictedVotes, calibration_by_group, reliability_table
from rlhf_pipeline.reports.calibrators import (
    chart_before_after,
    chart_dimension_errors,
    chart_group_errors,
)
from rlhf_pipeline.reports.draw import draw_png
from tests.unit.learn.calibration.test_by_group import report, rows


def groups() -> tuple[GroupCalibration, ...]:
    p, y, ids, sources = rows({"web": 60, "chat": 120, "tiny": 3})
    categories = {"category": {i: "poetry" for i, name in sources["source"].items()}}
    return calibration_by_group(PredictedVotes(p, y, ids, raw=p**0.5), sources | categories)


def whole() -> CalibrationReport:
    p, y, ids, _ = rows({"all": 50})
    bins = reliability_table(p, y, groups=ids)
    return report(groups()).model_copy(update={"raw_bins": bins, "calibrated_bins": bins})


def test_both_curves_of_all_pairs_and_of_chosen_groups_have_their_counts() -> None:
    everything = whole()
    shares, counts = chart_before_after(everything, {}).panels
    assert [line.name for line in shares.series] == ["before", "after"]
    assert shares.series[1].n == tuple(b.n for b in everything.calibrated_bins)
    assert counts.series[0].y == tuple(float(b.n) for b in everything.raw_bins)
    chart = chart_before_after(everything, {"category": "poetry", "source": "web"})
    assert chart.columns == 2
    titles = [panel.title for panel in chart.panels[:2]]
    assert titles == ["Category poetry, 183 pairs", "Source web, 60 pairs"]
    assert [sum(panel.series[1].y) for panel in chart.panels[2:]] == [549, 180]
    assert draw_png(chart).startswith(b"\x89PNG")


def test_errors_by_group_withhold_small_groups() -> None:
    group_of = {(group.by, group.group): group for group in groups()}
    chart = chart_group_errors(groups(), title="t", link=lambda by, name: f"/?{by}={name}")
    category, source = chart.panels
    assert (chart.title, category.title) == ("t", "By category, the largest on top")
    before, after = source.series
    assert [tick.label for tick in source.y.ticks] == ["chat", "web"]
    chat = group_of["source", "chat"]
    assert (before.x[0], after.x[0]) == (
        chat.raw.ece.value,
        chat.calibrated.ece.value,
    )
    assert (after.n, after.low[0]) == ((120, 60), chat.calibrated.ece.low)
    assert after.links == ("/?source=chat", "/?source=web")
    assert "withheld, fewer than 10 pairs, by source: tiny (3)" in chart.notes
    assert chart_group_errors((), title="t").panels == ()


def heads() -> tuple[DimensionCalibration, ...]:
    p, y, ids, _ = rows({"all": 60})
    names = {"dimension": dict.fromkeys(ids, "helpful")}
    (measured,) = calibration_by_group(PredictedVotes(p, y, ids, raw=p**0.5), names)
    helpful = DimensionCalibration(**measured.model_dump(), method="beta", params={}, n_fit=40)
    uncalibrated = helpful.model_copy(
        update={"group": "style", "method": None, "calibrated": None, "calibrated_bins": ()}
    )
    small = helpful.model_copy(update={"group": "tiny", "n": 3, "raw": None, "calibrated": None})
    return helpful, uncalibrated, small


def test_errors_of_heads_follow_the_overall_one() -> None:
    everything = whole().model_copy(update={"by_dimension": heads()})
    chart = chart_dimension_errors(everything, title="t", link=lambda by, name: f"/?{by}={name}")
    (panel,) = chart.panels
    assert [tick.label for tick in panel.y.ticks] == ["Overall score", "helpful", "style"]
    before, after = panel.series
    assert (before.y, after.y) == ((0, 1, 2), (0, 1))
    assert before.n == (everything.raw.n, 60, 60)
    helpful = heads()[0]
    assert (after.x[1], after.low[1]) == (
        helpful.calibrated.ece.value,
        helpful.calibrated.ece.low,
    )
    assert before.links[1] == "/?dimension=helpful"
    assert "withheld, fewer than 10 pairs, by dimension: tiny (3)" in chart.notes
    assert draw_png(chart).startswith(b"\x89PNG")
    none = chart_dimension_errors(whole(), title="t")
    assert none.panels == ()
    assert none.notes[-1].startswith("No test vote judges a dimension")

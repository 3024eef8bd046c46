"""Each scenario observes one world; fires, rates and the CUSUM beside are what they are called."""

import math

import numpy as np
import pandas as pd
import pytest

from rlhf_pipeline.laboratory import LAB_SCENARIOS
from rlhf_pipeline.laboratory.base import KnownRates, LabBar, Observation
from rlhf_pipeline.laboratory.known_rates import find_peak, tune_threshold
from rlhf_pipeline.laboratory.steady import measure_rate
from rlhf_pipeline.laboratory.suite import run_suite
from rlhf_pipeline.laboratory.tables import write_markdown, write_page
from rlhf_pipeline.laboratory.trigger_runs import find_fires
from rlhf_pipeline.simulation.vote_worlds import Change, VoteWorld, draw_votes
from rlhf_pipeline.workers.base import Here
from rlhf_pipeline.workers.processes import Processes

QUICK = ["young_model", "changed_or_steady"]
RATES = KnownRates(before=0.25, after=0.4, share_read=0.9)


@pytest.mark.parametrize("name", LAB_SCENARIOS)
def test_a_scenario_claims_something_beside_the_truth(name):
    scenario = LAB_SCENARIOS[name]
    assert scenario.name == name
    seen = scenario.observe(1)
    assert seen.claims
    assert 0 <= seen.n_counts <= seen.n_counted
    assert (seen.peak is None) == (scenario.known_rates is None)
    figure = scenario.measure([seen, seen])
    assert figure.low <= figure.value <= figure.high


def test_after_a_fire_a_new_model_is_watched_from_its_first_vote():
    changes = (
        Change(cause="taste", at=1000, size=0.2),
        Change(cause="taste", at=2500, size=0.3),
    )
    votes = draw_votes(VoteWorld(n_votes=3500, error_rate=0.15, changes=changes), 4)
    fires = find_fires(votes)
    assert [1000 < fires[0].seq < 1300, 2500 < fires[1].seq < 2800, len(fires)] == [True, True, 2]
    assert abs(fires[0].change_seq - 1000) < 150
    assert find_fires(votes, until=999) == fires[:1]


def test_the_threshold_gives_the_asked_rate_of_false_alarms():
    rate = 0.2
    threshold = tune_threshold(RATES, rate)
    wrong = np.random.default_rng(3).random(400_000) < RATES.before
    up, down = math.log(0.4 / 0.25), math.log(0.6 / 0.75)
    n_alarms, statistic = 0, 0.0
    for is_wrong in wrong.tolist():
        statistic = max(0.0, statistic + (up if is_wrong else down))
        if statistic >= threshold:
            n_alarms, statistic = n_alarms + 1, 0.0
    n_votes = len(wrong) / RATES.share_read
    assert n_alarms / n_votes * 1000 == pytest.approx(rate, rel=0.25)
    assert tune_threshold(RATES, 0.02) > threshold


def test_the_cusum_beside_reads_each_comparison_once_and_only_its_span():
    votes = pd.DataFrame({"seq": [1, 2, 3, 4], "error": 1.0, "comparison_id": ["a", "b", "b", "c"]})
    step = math.log(0.4 / 0.25)
    assert find_peak(votes, RATES, 0, 4) == pytest.approx(3 * step)
    assert find_peak(votes, RATES, 0, 2) == pytest.approx(2 * step)
    assert find_peak(votes, RATES, 4, 9) == 0


def test_no_fire_in_5000_votes_still_has_an_interval():
    found = measure_rate([Observation(world={}, claims=(), n_counted=5000, n_counts=0)])
    assert (found.value, found.low) == (0, 0)
    assert found.high == pytest.approx(3.689 / 5, abs=1e-3)  # Garwood 1936


def test_a_bar_is_a_limit_from_its_side():
    assert [str(LabBar(limit=0.05, is_upper=True)), str(LabBar(limit=0.9, is_upper=False))] == [
        "≤ 0.05",
        "≥ 0.9",
    ]
    assert LabBar(limit=0.05, is_upper=True).is_met(0.05)
    assert not LabBar(limit=0.9, is_upper=False).is_met(0.89)


def test_the_suite_is_the_same_whatever_the_workers_and_stands_in_both_files():
    progress = []
    report = run_suite(QUICK, 2, Here(), lambda *at: progress.append(at))
    assert report == run_suite(QUICK, 2, Processes(1))
    assert progress[-1] == (4, 4, "changed_or_steady")
    assert [row.name for row in report.rows] == QUICK
    assert report.rows[0].beside is not None
    markdown, page = write_markdown(report), write_page(report)
    for row in report.rows:
        assert f"| {row.name} | {row.title} |" in markdown
        assert f"{row.figure.value:.3f} [{row.figure.low:.3f}" in markdown
        assert row.name in page


def test_steady_rows_are_summed_up_where_there_are_several():
    report = run_suite(["independent", "five_in_a_row"], 1, Here())
    assert [row.name for row in report.rows] == ["independent", "five_in_a_row", "all_steady"]
    assert str(report.rows[2].bar) == "≤ 0.03"
    assert report.rows[2].figure.n == 2

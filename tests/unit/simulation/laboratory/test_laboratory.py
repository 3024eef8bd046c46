"""Each scenario observes one world; responses and rates are what they are called."""

import pytest

from rlhf_pipeline.simulation.laboratory import LAB_SCENARIOS
from rlhf_pipeline.simulation.laboratory.base import Observation
from rlhf_pipeline.simulation.laboratory.steady import measure_rate
from rlhf_pipeline.simulation.laboratory.suite import run_suite
from rlhf_pipeline.simulation.laboratory.tables import write_markdown
from rlhf_pipeline.simulation.laboratory.trigger_runs import find_responses, list_ticks
from rlhf_pipeline.simulation.vote_worlds import Change, VoteWorld, draw_votes

QUICK = ["young_model", "cause_taste"]
# Others of a kind differ by their world alone; `rlhf lab suite` runs them.
ONE_OF_A_KIND = {type(LAB_SCENARIOS[name]): name for name in reversed([*LAB_SCENARIOS])}


def test_scenarios_are_listed_by_their_names():
    assert [scenario.name for scenario in LAB_SCENARIOS.values()] == list(LAB_SCENARIOS)


@pytest.mark.parametrize("name", ONE_OF_A_KIND.values())
def test_a_scenario_counts_what_it_observes(name):
    scenario = LAB_SCENARIOS[name]
    observation = scenario.observe(1)
    assert 0 <= observation.n_counts <= observation.n_counted
    figure = scenario.measure([observation, observation])
    assert figure.low <= figure.value <= figure.high


def test_after_a_retraining_a_new_model_is_watched_from_its_first_vote():
    changes = (
        Change(cause="taste", at=1000, size=0.2),
        Change(cause="taste", at=2500, size=0.3),
    )
    world = VoteWorld(n_votes=3500, error_rate=0.15, changes=changes)
    votes = draw_votes(world, 4)
    responses = find_responses(world, votes, 4)
    retrainings = [response for response in responses if response.retrains]
    assert 1000 < retrainings[0].seq < 1400
    assert abs(retrainings[0].decision.change_seq - 1000) < 150
    assert any(2500 < response.seq < 2900 for response in retrainings)
    first = find_responses(world, votes, 4, until=999)
    assert [response.seq for response in first] == [
        response.seq for response in responses[: len(first)]
    ]


def test_response_waits_for_confirmation_and_a_tick():
    world = VoteWorld(n_votes=1400, changes=(Change(cause="taste", at=800, size=0.25),))
    votes = draw_votes(world, 1)
    (response,) = find_responses(world, votes, 1, until=800)
    assert response.retrains
    assert 800 < response.confirmed_seq <= response.seq
    assert {response.confirmed_seq, response.seq} <= set(list_ticks(votes))
    assert list_ticks(votes)[:4] == [50, 100, 150, 200]


def test_careless_annotators_ask_a_person_without_retraining():
    careless = Change(cause="carelessness", at=600, size=0.4, is_fast=False)
    world = VoteWorld(n_votes=2500, n_annotators=20, changes=(careless,))
    responses = find_responses(world, draw_votes(world, 23), 23)
    questions = [response for response in responses if response.remedy == "quarantine"]
    assert questions[0].decision.action == "hold"
    assert {f"annotator {i}" for i in range(8)} >= set(
        questions[0].decision.quarantine.annotator_ids
    )
    assert not any(response.retrains for response in responses)


def test_calibration_change_is_answered_by_recalibration():
    change = Change(cause="calibration", at=800, size=3.0)
    world = VoteWorld(n_votes=1800, changes=(change,))
    response = find_responses(world, draw_votes(world, 4), 4)[0]
    assert (response.remedy, response.cause) == ("refit_calibrator", "calibration")
    assert 800 < response.seq < 1200


def test_zero_retrainings_have_an_interval():
    rate = measure_rate([Observation(n_counted=5000, n_counts=0)])
    assert (rate.value, rate.low) == (0, 0)
    assert rate.high == pytest.approx(3.689 / 5, abs=1e-3)  # Garwood 1936


def test_suite_equals_its_file():
    progress = []
    report = run_suite(QUICK, 2, map, lambda *at: progress.append(at))
    assert progress[-1] == (4, 4, "cause_taste")
    assert [row.name for row in report.rows] == [*QUICK, "taste_retrained"]
    markdown = write_markdown(report)
    for row in report.rows:
        assert f"| {row.name} | {row.title} |" in markdown
        assert f"{row.figure.value:.3f} [{row.figure.low:.3f}" in markdown


def test_several_steady_rows_are_summarised():
    report = run_suite(["independent", "five_in_a_row"], 1, map)
    assert [row.name for row in report.rows] == ["independent", "five_in_a_row", "all_steady"]
    assert str(report.rows[2].bar) == "≤ 0.03"
    assert report.rows[2].figure.n == 2

"""Responses of the trigger to drawn worlds: when they come, and what they propose."""

from benchmarks.trigger_runs import find_responses, list_ticks
from benchmarks.vote_worlds import Change, VoteWorld, draw_votes


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

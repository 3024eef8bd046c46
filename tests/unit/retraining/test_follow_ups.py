"""A second retraining of one change: when it fires, and what it leaves alone."""

from datetime import timedelta

import pytest

from rlhf_pipeline.records import RetrainingResult
from rlhf_pipeline.retraining.explanation import check_conditions, find_differences, read_inputs
from rlhf_pipeline.retraining.triggers import TriggerParams, decide
from tests.unit.retraining.test_triggers import NOW, event, evidence

TWICE = TriggerParams(follow_ups=2)
GAINED = RetrainingResult(parent=3, n_follow_ups=0, promoted=True, failed=(), win_rate_low=0.71)


def after(result: RetrainingResult = GAINED, *events, **more):
    return evidence(*events, last_retraining=result, **more)


def test_a_training_that_still_gained_is_followed_by_another():
    decision = decide(after(), TWICE)
    assert (decision.action, decision.remedy, decision.parent) == ("fire", "retrain", 3)
    assert (decision.change_seq, decision.event_ids) == (None, ())
    assert decision.reasons == (
        "follow-up of decision 3: its training still gained, with a win rate of at least 0.710",
    )
    assert find_differences(decision) == []
    assert all(each.is_met is not False for each in check_conditions(read_inputs(decision)))


@pytest.mark.parametrize(
    "changes",
    [
        {"win_rate_low": 0.55},
        {"n_follow_ups": 2},
        {"promoted": False, "failed": ("checkable_answers",)},
        {"promoted": False, "failed": ("win_rate", "mean_length")},
    ],
)
def test_no_follow_up_without_gain_beyond_two_or_for_faults_that_more_would_worsen(changes):
    assert decide(after(GAINED.model_copy(update=changes)), TWICE).action == "hold"


def test_a_candidate_refused_by_its_win_rates_alone_is_tried_again():
    refused = GAINED.model_copy(update={"promoted": False, "failed": ("win_rate", "categories")})
    decision = decide(after(refused), TWICE)
    assert decision.parent == 3
    assert "refused its candidate by win_rate, categories alone" in decision.reasons[0]


def test_a_follow_up_waits_for_cool_down_votes_and_people_and_is_off_by_default():
    assert decide(after(last_fired_at=NOW - timedelta(hours=1)), TWICE).action == "hold"
    assert decide(after(n_new_votes=10), TWICE).action == "hold"
    assert decide(after(n_unfinished=1), TWICE).action == "hold"
    assert decide(after()).action == "hold"


def test_a_new_change_comes_before_a_follow_up():
    decision = decide(after(GAINED, event("ddm", 1000), event("adwin", 1100)), TWICE)
    assert (decision.parent, decision.change_seq) == (None, 900)

import math

import pytest

from rlhf_pipeline.evaluation.gate import GateParams, decide_promotion
from rlhf_pipeline.records import CategoryComparison, Evaluation, Interval


def interval(value, low, high, n=300):
    return Interval(value=value, low=low, high=high, n=n)


def evaluation(**changes):
    good = {
        "candidate": "demo.policy@2",
        "champion": "demo.policy@1",
        "reward_model": "demo.reward_model@1",
        "n_prompts": 300,
        "prompts_hash": "h",
        "win_rate": interval(0.6, 0.55, 0.65),
        "mean_reward_candidate": interval(0.5, 0.4, 0.6),
        "mean_reward_champion": interval(0.0, -0.1, 0.1),
        "kl": interval(0.1, 0.08, 0.12),
        "checkable_candidate": interval(0.28, 0.22, 0.34, 180),
        "checkable_champion": interval(0.3, 0.24, 0.36, 180),
        "checkable_difference": interval(-0.02, -0.06, 0.02, 180),
        "length_candidate": interval(70.0, 66.0, 74.0),
        "length_champion": interval(65.0, 61.0, 69.0),
    }
    return Evaluation(**(good | changes))


def verdict(decision, name):
    return next(check for check in decision.checks if check.name == name)


def test_a_candidate_that_meets_every_rule_is_promoted_with_reasons():
    decision = decide_promotion(evaluation(), GateParams())
    assert decision.promoted
    assert [check.name for check in decision.checks] == [
        "win_rate",
        "categories",
        "checkable_answers",
        "mean_length",
        "blocking_checks",
    ]
    assert (
        verdict(decision, "win_rate").reason
        == "Win rate 0.600 over 300 prompts: its lower bound 0.550 is above 0.5."
    )
    assert verdict(decision, "mean_length").reason == (
        "Mean length 70.0 characters, the champion's 65.0: a change of +7.7%, within the 25% "
        "allowed."
    )


def test_a_lower_bound_of_exactly_one_half_is_not_enough():
    decision = decide_promotion(evaluation(win_rate=interval(0.56, 0.5, 0.62)), GateParams())
    assert not decision.promoted
    assert "lower bound 0.500 is not above 0.5" in verdict(decision, "win_rate").reason


def in_category(name, win_rate):
    return CategoryComparison(
        category=name, win_rate=win_rate, reward_difference=win_rate, checkable_difference=None
    )


def test_a_category_that_was_forgotten_stops_a_winner():
    known = (
        in_category("coding", interval(0.75, 0.7, 0.8)),
        in_category("safety", interval(0.4, 0.31, 0.49, 50)),
    )
    check = verdict(decide_promotion(evaluation(by_category=known), GateParams()), "categories")
    assert not check.passed
    assert "in 1 of 2 categories: safety 0.400 [0.310, 0.490]" in check.reason
    accepted = GateParams(min_category_win_rate=0.45)
    assert verdict(decide_promotion(evaluation(by_category=known), accepted), "categories").passed


def test_facts_worse_beyond_the_interval_stop_a_winner():
    decision = decide_promotion(
        evaluation(checkable_difference=interval(-0.08, -0.13, -0.03, 180)), GateParams()
    )
    assert not decision.promoted
    assert "is worse beyond its interval" in verdict(decision, "checkable_answers").reason


def test_facts_worse_within_the_interval_do_not():
    assert verdict(
        decide_promotion(evaluation(checkable_difference=interval(-0.05, -0.1, 0.0)), GateParams()),
        "checkable_answers",
    ).passed


@pytest.mark.parametrize(
    ("length", "passed"),
    [(81.25, True), (81.3, False), (48.75, True), (48.7, False), (math.nan, False)],
)
def test_the_mean_length_may_move_a_quarter_either_way(length, passed):
    measured = evaluation(length_candidate=interval(length, 40.0, 90.0))
    assert verdict(decide_promotion(measured, GateParams()), "mean_length").passed is passed


def test_a_failed_blocking_check_stops_everything_and_is_named():
    decision = decide_promotion(evaluation(), GateParams(), ["retraining_set: enough pairs"])
    assert not decision.promoted
    assert (
        verdict(decision, "blocking_checks").reason
        == "1 blocking checks failed: retraining_set: enough pairs."
    )


def test_nothing_checkable_is_not_taken_for_correct():
    nothing = evaluation(
        checkable_candidate=None, checkable_champion=None, checkable_difference=None
    )
    assert not decide_promotion(nothing, GateParams(require_checkable="always")).promoted
    assert decide_promotion(nothing, GateParams()).promoted

import math

import pytest

from rlhf_pipeline.core.records import CategoryComparison, Evaluation, Interval
from rlhf_pipeline.improve.evaluation.gate import GateParams, decide_promotion


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
        "length_controlled_win_rate": interval(0.58, 0.53, 0.63),
    }
    return Evaluation(**(good | changes))


def verdict(decision, name):
    return next(check for check in decision.checks if check.name == name)


def test_a_candidate_that_meets_every_rule_is_promoted_with_reasons():
    decision = decide_promotion(evaluation(), GateParams())
    assert decision.promoted
    assert [check.name for check in decision.checks] == [
        "win_rate",
        "win_rate_at_equal_length",
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
        "Mean length 70.0 characters, the champion's 65.0: a change of +7.7%, within the "
        "tolerance of 10%."
    )


def test_a_lower_bound_of_exactly_one_half_is_not_enough():
    decision = decide_promotion(evaluation(win_rate=interval(0.56, 0.5, 0.62)), GateParams())
    assert not decision.promoted
    assert "lower bound 0.500 is not above 0.5" in verdict(decision, "win_rate").reason


def in_category(name, win_rate):
    return CategoryComparison(
        category=name, win_rate=win_rate, reward_difference=win_rate, checkable_difference=None
    )


def test_forgotten_category_blocks_promotion():
    known = (
        in_category("coding", interval(0.75, 0.7, 0.8)),
        in_category("safety", interval(0.38, 0.29, 0.47, 50)),
    )
    check = verdict(decide_promotion(evaluation(by_category=known), GateParams()), "categories")
    assert not check.passed
    assert "in 1 of 2 categories: safety 0.380 [0.290, 0.470]" in check.reason
    accepted = GateParams(min_category_win_rate=0.45)
    assert verdict(decide_promotion(evaluation(by_category=known), accepted), "categories").passed


def test_category_losses_are_corrected_for_their_number():
    loss = in_category("safety", interval(0.4, 0.31, 0.49, 50))
    known = (loss, *(in_category(f"c{n}", interval(0.6, 0.5, 0.7, 50)) for n in range(19)))
    assert verdict(
        decide_promotion(evaluation(by_category=known), GateParams()), "categories"
    ).passed
    surer = in_category("safety", interval(0.3, 0.21, 0.39, 50))
    check = verdict(
        decide_promotion(evaluation(by_category=(surer, *known[1:])), GateParams()), "categories"
    )
    assert not check.passed


@pytest.mark.parametrize(
    ("difference", "passed", "reason"),
    [
        (interval(-0.02, -0.06, 0.02, 180), True, "excludes a loss of 0.1 or more"),
        (interval(-0.05, -0.09, -0.01, 180), False, "is a proven loss"),
        (interval(-0.02, -0.12, 0.08, 180), False, "does not exclude a loss of 0.1"),
        (interval(0.05, -0.3, 0.4, 12), True, "is of too few prompts"),
        (interval(-0.5, -0.8, -0.1, 12), False, "is a proven loss"),
    ],
)
def test_loss_of_facts_beyond_the_margin_blocks_promotion(difference, passed, reason):
    check = verdict(
        decide_promotion(evaluation(checkable_difference=difference), GateParams()),
        "checkable_answers",
    )
    assert check.passed is passed
    assert reason in check.reason


def test_too_few_checkable_prompts_block_promotion_if_required():
    few = evaluation(checkable_difference=interval(0.05, -0.3, 0.4, 12))
    assert not decide_promotion(few, GateParams(require_checkable="always")).promoted


@pytest.mark.parametrize(
    ("length", "at_equal_length", "promoted"),
    [
        (83.2, interval(0.64, 0.58, 0.7), True),  # longer, and better at equal length
        (97.5, interval(0.52, 0.46, 0.58), False),  # a win by length alone
        (70.0, interval(0.55, 0.49, 0.61), True),  # as long as before
        (40.0, interval(0.5, 0.3, 0.7), True),  # people want short answers
        (97.5, None, False),
        (math.nan, interval(0.5, 0.3, 0.7), False),
    ],
)
def test_a_longer_candidate_must_win_at_equal_length_too(length, at_equal_length, promoted):
    measured = evaluation(
        length_candidate=interval(length, 40.0, 90.0), length_controlled_win_rate=at_equal_length
    )
    decision = decide_promotion(measured, GateParams())
    assert decision.promoted is promoted
    assert verdict(decision, "win_rate_at_equal_length").passed is promoted


@pytest.mark.parametrize(
    ("length", "warns"), [(71.4, False), (71.6, True), (58.6, False), (58.4, True)]
)
def test_mean_length_gives_a_warning_only(length, warns):
    decision = decide_promotion(
        evaluation(length_candidate=interval(length, 40.0, 90.0)), GateParams()
    )
    check = verdict(decision, "mean_length")
    assert decision.promoted
    assert (check.passed, check.is_warning) == (True, warns)


def test_failed_blocking_check_is_named_and_stops_promotion():
    decision = decide_promotion(evaluation(), GateParams(), ["retraining_set: enough pairs"])
    assert not decision.promoted
    assert (
        verdict(decision, "blocking_checks").reason
        == "1 blocking checks failed: retraining_set: enough pairs."
    )


def test_no_checkable_prompt_gives_no_correctness():
    nothing = evaluation(
        checkable_candidate=None, checkable_champion=None, checkable_difference=None
    )
    assert not decide_promotion(nothing, GateParams(require_checkable="always")).promoted
    assert decide_promotion(nothing, GateParams()).promoted

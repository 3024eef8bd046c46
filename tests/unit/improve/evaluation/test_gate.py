import math

import pytest

from rlhf_pipeline.core.records import (
    CanaryExposure,
    CategoryComparison,
    Evaluation,
    Interval,
    SafetyComparison,
)
from rlhf_pipeline.improve.evaluation.error_memory import ErrorMemory, MemoryCounts
from rlhf_pipeline.improve.evaluation.gate import REQUIRED, GateParams, decide_promotion
from rlhf_pipeline.improve.evaluation.judge_calibration import JudgeCalibration


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
        "n_leaked": 0,
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
        "kl",
        "diversity",
        "mean_length",
        "evaluation_prompts",
        "blocking_checks",
    ]
    assert verdict(decision, "win_rate").reason == (
        "By the judge alone: win rate 0.600 over 300 prompts; its lower bound 0.550 is above 0.5. "
        "How often the judge agrees with held-out votes is unknown, and not in the bound."
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


def test_judge_error_on_held_out_votes_widens_the_win_rate():
    close = {"win_rate": interval(0.56, 0.51, 0.61)}
    assert decide_promotion(evaluation(**close), GateParams()).promoted
    unsure = evaluation(**close, judge_agreement=interval(0.75, 0.7, 0.8, 300))
    check = verdict(decide_promotion(unsure, GateParams()), "win_rate")
    assert not check.passed
    assert "right on 75% of 300 held-out pairs" in check.reason


@pytest.mark.parametrize(
    ("name", "changes", "is_missing"),
    [
        ("kl", {"kl": interval(1.2, 1.1, 1.3)}, False),
        ("diversity", {"diversity_champion": 0.3, "diversity_candidate": 0.14}, False),
        ("diversity", {"copied_champion": 0.05, "copied_candidate": 0.2}, False),
        ("evaluation_prompts", {"n_leaked": 2}, False),
        ("evaluation_prompts", {"n_leaked": None}, True),
    ],
)
def test_named_check_refuses_only_where_it_is_required(name, changes, is_missing):
    measured = evaluation(**changes)
    decision = decide_promotion(measured, GateParams())
    assert [check.name for check in decision.blocking] == [name]
    assert verdict(decision, name).is_missing is is_missing
    others = GateParams(required=[other for other in REQUIRED if other != name])
    assert decide_promotion(measured, others).promoted


def test_short_answers_and_as_many_copies_as_before_are_promoted():
    labels = {"diversity_champion": 0.3, "diversity_candidate": None}
    copies = {"copied_champion": 0.5, "copied_candidate": 0.55}
    assert decide_promotion(evaluation(**labels, **copies), GateParams()).promoted


def test_lost_hits_on_remembered_errors_refuse_where_required():
    params = GateParams(required=[*REQUIRED, "remembered_errors"])
    assert [check.is_missing for check in decide_promotion(evaluation(), params).blocking] == [True]
    worse = ErrorMemory(held_out=MemoryCounts(n_fixed=1, n_still_right=5, n_regressed=2))
    assert not decide_promotion(evaluation(), params, memory=worse).promoted
    better = ErrorMemory(held_out=MemoryCounts(n_fixed=3, n_still_right=5, n_regressed=2))
    assert decide_promotion(evaluation(), params, memory=better).promoted


def test_unknown_required_check_is_refused_with_the_known_names():
    with pytest.raises(ValueError, match="'winrate' is no check of the gate: win_rate, "):
        GateParams(required=["winrate"])


@pytest.mark.parametrize(
    ("low", "passed", "is_missing"),
    [(0.04, True, False), (0.06, False, False), (None, False, True)],
)
def test_badly_calibrated_judge_refuses_where_required(low, passed, is_missing):
    judge = JudgeCalibration(
        reward_model="demo.reward_model@1",
        measured_on="held-out comparisons",
        n=80,
        n_needed=50,
        limit=0.05,
        ece=None if low is None else 0.09,
        low=low,
    )
    params = GateParams(required=[*REQUIRED, "judge_calibration"])
    decision = decide_promotion(evaluation(), params, calibration=judge)
    assert decision.promoted is passed
    assert verdict(decision, "judge_calibration").is_missing is is_missing
    assert decide_promotion(evaluation(), GateParams(), calibration=judge).promoted


def safety(**changes):
    equal = {"n": 40, "n_candidate": 3, "n_champion": 3, "never": (), "p_value": 0.5}
    return evaluation(safety=SafetyComparison(**equal | changes))


@pytest.mark.parametrize(
    ("changes", "promoted"),
    [
        ({}, True),
        ({"n_candidate": 9, "p_value": 0.016}, False),
        ({"never": ("How do I pick a lock?",)}, False),
    ],
)
def test_safety_prompts_refuse_wherever_they_were_measured(changes, promoted):
    decision = decide_promotion(safety(**changes), GateParams())
    assert decision.promoted is promoted
    assert verdict(decision, "safety_prompts").passed is promoted


@pytest.mark.parametrize(
    ("measured", "promoted"),
    [
        ({"exposure": 4.9}, True),
        ({"exposure": 6.1}, False),
        ({"exposure": 1.4, "n_said": 1}, False),
    ],
)
def test_exposed_canaries_refuse_wherever_they_were_planted(measured, promoted):
    planted = {"n": 16, "limit": 2.4, "n_first": 1, "n_said": 0, "n_alternatives": 255}
    exposure = CanaryExposure(**planted | measured)
    decision = decide_promotion(evaluation(canaries=exposure), GateParams())
    assert decision.promoted is promoted


@pytest.mark.parametrize("name", ["safety_prompts", "canaries"])
def test_required_check_without_its_setting_is_missing(name):
    decision = decide_promotion(evaluation(), GateParams(required=[*REQUIRED, name]))
    assert [(check.name, check.is_missing) for check in decision.blocking] == [(name, True)]

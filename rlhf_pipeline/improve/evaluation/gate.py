"""Decides by five rules and a warning whether a candidate becomes champion."""

from collections.abc import Sequence
from statistics import NormalDist
from typing import Literal

from pydantic import Field

from rlhf_pipeline.core.parameters import Parameters
from rlhf_pipeline.core.records import (
    CategoryComparison,
    Evaluation,
    GateCheck,
    GateDecision,
    Interval,
)

FEW_PROMPTS = 100  # below, the gate shows the smallest gain it could detect
FEW_CHECKABLE = 30  # prompts; fewer exclude no loss of facts that anyone would accept


class GateParams(Parameters):
    """Thresholds of the promotion rules."""

    min_win_rate: float = Field(
        0.5, description="The win rate's lower bound must be above this", ge=0, le=1
    )
    min_category_win_rate: float = Field(
        0.5,
        description="In no category of prompts may the win rate's upper bound be below this, "
        "corrected for the number of categories; 0 = any loss is accepted",
        ge=0,
        le=1,
    )
    facts_margin: float = Field(
        0.1,
        description="Share of checkable answers that the candidate may lose: a greater loss "
        "must be excluded by the interval; 1 = only a proven loss refuses",
        gt=0,
        le=1,
    )
    length_tolerance: float = Field(
        0.1,
        description="Relative growth of the mean length above which the candidate must also win at "
        "equal length; a change of more than this either way is a warning",
        ge=0,
    )
    require_checkable: Literal["auto", "always"] = Field(
        "auto",
        description="Where no prompt of the evaluation set has a checkable answer: auto = judge "
        "without them, always = refuse the candidate",
    )


def decide_promotion(
    evaluation: Evaluation, params: GateParams, failed_blocking_checks: Sequence[str] = ()
) -> GateDecision:
    """Promote the candidate only if every rule holds: a win rate alone rewards longer texts and
    worse facts (Gao et al. 2023).

    The rules: the win rate's lower bound is above min_win_rate, and so is that of the win rate at
    equal length if the candidate writes longer texts; no category is significantly worse, so that
    what new votes are not about is not forgotten; a loss of facts beyond facts_margin is excluded;
    no blocking check failed. The mean length only warns, as people may want shorter or longer
    answers. `failed_blocking_checks` are names of failed checks.
    """
    checks = (
        _check_win_rate(evaluation, params),
        _check_equal_length(evaluation, params),
        _check_categories(evaluation, params),
        _check_answers(evaluation, params),
        _warn_of_length(evaluation, params),
        _check_blocking(failed_blocking_checks),
    )
    return GateDecision(
        candidate=evaluation.candidate,
        champion=evaluation.champion,
        promoted=all(check.passed for check in checks),
        checks=checks,
        evaluation=evaluation,
    )


def _check_win_rate(evaluation: Evaluation, params: GateParams) -> GateCheck:
    rate = evaluation.win_rate
    passed = rate.low > params.min_win_rate
    return GateCheck(
        name="win_rate",
        passed=passed,
        reason=f"Win rate {rate.value:.3f} over {rate.n} prompts: its lower bound {rate.low:.3f} "
        f"is {'above' if passed else 'not above'} {params.min_win_rate:g}."
        + _describe_labels(evaluation)
        + (_describe_power(rate, params) if rate.n < FEW_PROMPTS else ""),
    )


def _describe_labels(evaluation: Evaluation) -> str:
    """The second figure: the win rate by those who labelled what the candidate was trained on."""
    if evaluation.shares_votes:
        return " The judge knows votes that the candidate was trained on."
    by_labels = evaluation.win_rate_by_labels
    return (
        ""
        if by_labels is None
        else f" The members that labelled its training set give it {by_labels.value:.3f}."
    )


def _describe_power(rate: Interval, params: GateParams) -> str:
    """The smallest true win rate that would pass in 8 of 10 evaluations as wide as this one."""
    standard_error = (rate.high - rate.low) / (2 * 1.96)
    detectable = params.min_win_rate + (1.96 + 0.84) * standard_error
    return (
        f" On so few prompts only a true win rate of {min(detectable, 1.0):.2f} or more would "
        "pass in 8 of 10 evaluations: add prompts to the evaluation set."
    )


def _check_equal_length(evaluation: Evaluation, params: GateParams) -> GateCheck:
    """A judge prefers longer texts more than people do (Dubois et al. 2024)."""
    rate = evaluation.length_controlled_win_rate
    is_longer = not evaluation.length_ratio - 1 <= params.length_tolerance
    if rate is None:
        return GateCheck(
            name="win_rate_at_equal_length",
            passed=not is_longer,
            reason="The win rate at equal length was not measured: materialise evaluation again.",
        )
    wins = rate.low > params.min_win_rate
    reason = (
        f"At equal length the win rate would be {rate.value:.3f}: its lower bound {rate.low:.3f} "
        f"is {'above' if wins else 'not above'} {params.min_win_rate:g}"
    )
    if wins or is_longer:
        return GateCheck(name="win_rate_at_equal_length", passed=wins, reason=f"{reason}.")
    return GateCheck(
        name="win_rate_at_equal_length",
        passed=True,
        reason=f"{reason}, which the candidate needs only if its texts are more than "
        f"{params.length_tolerance:.0%} longer.",
    )


def _check_categories(evaluation: Evaluation, params: GateParams) -> GateCheck:
    limit, categories = params.min_category_win_rate, evaluation.by_category
    worse = [category for category in categories if _is_worse(category, limit, len(categories))]
    rates = ", ".join(f"{category.category} {category.win_rate}" for category in worse)
    reason = (
        f"Worse than the champion beyond the interval, {limit:g}, in {len(worse)} of "
        f"{len(categories)} categories: {rates}. Collect votes on them."
        if worse
        else f"None of {len(categories)} categories is worse beyond its interval."
        if categories
        else "No category has enough prompts for a figure of its own."
    )
    return GateCheck(name="categories", passed=not worse, reason=reason)


def _is_worse(category: CategoryComparison, limit: float, n_categories: int) -> bool:
    """Whether the win rate's upper bound is below `limit`, with the interval widened after
    Bonferroni for the number of categories: of 20 equal ones, one would lose by chance.
    """
    rate = category.win_rate
    tail = (1 - rate.level) / 2
    wider = NormalDist().inv_cdf(tail / n_categories) / NormalDist().inv_cdf(tail)
    return rate.value + wider * (rate.high - rate.value) < limit


def _check_answers(evaluation: Evaluation, params: GateParams) -> GateCheck:
    """Non-inferiority: no loss is proven, and one beyond the margin is excluded."""
    difference = evaluation.checkable_difference
    candidate = evaluation.checkable_candidate
    champion = evaluation.checkable_champion
    is_required = params.require_checkable == "always"
    if difference is None or candidate is None or champion is None:
        what = (
            "so nothing shows that facts did not suffer" if is_required else "and none is required"
        )
        return GateCheck(
            name="checkable_answers",
            passed=not is_required,
            reason=f"No prompt has a checkable answer, {what}.",
        )
    is_excluded = difference.low >= -params.facts_margin
    is_few = difference.n < FEW_CHECKABLE and not is_required
    if difference.high < 0:
        passed, verdict = False, "is a proven loss"
    elif is_excluded:
        passed, verdict = True, f"excludes a loss of {params.facts_margin:g} or more"
    elif is_few:
        passed, verdict = True, "is of too few prompts to exclude a loss, and none is required"
    else:
        passed, verdict = (
            False,
            f"does not exclude a loss of {params.facts_margin:g}. Add checkable prompts to the "
            "evaluation set, or raise facts_margin",
        )
    return GateCheck(
        name="checkable_answers",
        passed=passed,
        reason=f"Right on {candidate.value:.3f} of {difference.n} checkable prompts, the champion "
        f"on {champion.value:.3f}: the difference {difference.value:+.3f} [{difference.low:+.3f}, "
        f"{difference.high:+.3f}] {verdict}.",
    )


def _warn_of_length(evaluation: Evaluation, params: GateParams) -> GateCheck:
    before, after = evaluation.length_champion.value, evaluation.length_candidate.value
    change = evaluation.length_ratio - 1
    is_moderate = abs(change) <= params.length_tolerance
    return GateCheck(
        name="mean_length",
        passed=True,
        is_warning=not is_moderate,
        reason=f"Mean length {after:.1f} characters, the champion's {before:.1f}: a change of "
        f"{change:+.1%}, {'within' if is_moderate else 'beyond'} the tolerance of "
        f"{params.length_tolerance:.0%}{'.' if is_moderate else '. Read some of its texts.'}",
    )


def _check_blocking(failed: Sequence[str]) -> GateCheck:
    reason = (
        f"{len(failed)} blocking checks failed: {', '.join(failed)}."
        if failed
        else "No blocking check failed."
    )
    return GateCheck(name="blocking_checks", passed=not failed, reason=reason)

"""Watches the deployed policy by day: mean reward, refusals and length of its completions.

The days before are those of the same policy version, and for rewards those scored by the same
reward model: scores of two models have no common scale.
"""

import math
import re
from collections.abc import Sequence
from dataclasses import replace
from datetime import date, timedelta
from typing import Any

import pandas as pd
from pydantic import Field

from rlhf_pipeline.core.records import Record
from rlhf_pipeline.watch.drift.two_sample import TestResult, mean_difference
from rlhf_pipeline.watch.drift.windows import SpaceTest, WindowParams


class PromptMean(Record):
    """Mean and variance over the prompts of a day, each prompt's completions averaged."""

    n: int = Field(description="prompts")
    mean: float
    variance: float = Field(description="between prompts; 0 for a single one")


class PolicyDay(Record):
    """Completions of one day by the deployed policy."""

    day: str = Field(description="UTC day, YYYY-MM-DD")
    policy: str = Field(description="model version that made them")
    n_completions: int = Field(description="refusals included, failed calls not")
    refused: PromptMean = Field(description="share of refusals and empty texts")
    length: PromptMean = Field(description="characters")
    reward: PromptMean | None = Field(
        default=None,
        description="score in logits, as given when the comparison was published; None before the "
        "first reward model",
    )
    reward_model: str | None = Field(default=None, description="the reward model that gave it")
    rests_on: str = Field(
        default="",
        description="hash of the input frames; a day with another hash is outdated",
    )


# What the backends write into `error`; calls that failed otherwise say nothing of the policy.
REFUSED_CALL = re.compile(
    r"^\S+ (?:refused: |stopped by its content filter|sent an empty completion)"
)
# Whole sentences of refusal near the beginning. English only: in other languages only what the
# provider reports as a refusal, and empty texts, are counted.
REFUSING_TEXT = re.compile(
    r"\bI(?:'m| am)? (?:can't|cannot|can not|won't|will not|unable to|not able to|must decline to) "
    r"(?:help|assist|comply|fulfil|provide|answer|do that|create|write|generate|discuss|continue)"
    r"|\bas an AI (?:language )?model, I (?:can't|cannot|can not|am unable|am not able|do not)",
    re.IGNORECASE,
)
MAX_OPENING = 300  # characters: later, a refusal is quoted or part of a longer completion
SPACE = "policy"


class PolicyParams(WindowParams):
    """When the deployed policy's completions of a day differ from those of the days before."""

    policy_days: int = Field(
        default=28,
        ge=1,
        le=365,
        description="Days before the day that its completions are compared with, of the same "
        "policy version",
    )
    reward_effect: float = Field(
        default=0.4,
        gt=0,
        description="Change of the mean reward, in standard deviations between prompts, that "
        "counts as drift",
    )
    refusal_effect: float = Field(
        default=0.05, gt=0, le=1, description="Change of the share of refusals that is drift"
    )
    length_effect: float = Field(
        default=0.25,
        gt=0,
        description="Change of the mean length, as a share of the mean before, that is drift",
    )


def find_refusals(completions: pd.DataFrame) -> "pd.Series[bool]":
    """Whether each of COMPLETIONS is a refusal: an empty text, one that the provider refused or
    filtered, or one that begins with a sentence of refusal in English.
    """
    text = completions["text"].fillna("").str.replace("\N{RIGHT SINGLE QUOTATION MARK}", "'")
    error = completions["error"].fillna("")
    is_made = error == ""
    is_refusing = (text.str.strip() == "") | text.str[:MAX_OPENING].str.contains(REFUSING_TEXT)
    is_filtered = completions["finish_reason"] == "content_filter"
    refused: pd.Series[bool] = (
        (is_made & is_refusing) | is_filtered | error.str.contains(REFUSED_CALL)
    )
    return refused


def summarise_policy_day(
    day: str, completions: pd.DataFrame, comparisons: pd.DataFrame, predictions: pd.DataFrame
) -> PolicyDay | None:
    """The day of the policy that made most of its COMPLETIONS; None without completions.

    The reward is the score that the reward model gave when the comparison was published; where
    several predicted, the one that predicted most of them.
    """
    is_refusal = find_refusals(completions)
    answered = completions.assign(is_refusal=is_refusal)[is_refusal | completions["error"].isna()]
    if answered.empty:
        return None
    policy = str(answered["model_version"].mode().iloc[0])
    mine = answered[answered["model_version"] == policy]
    length = mine["text"].fillna("").str.len().astype(float)
    scores, reward_model = _collect_scores(mine, comparisons, predictions)
    return PolicyDay(
        day=day,
        policy=policy,
        n_completions=len(mine),
        refused=_mean_of(mine["is_refusal"].astype(float), mine["prompt_id"]),
        length=_mean_of(length, mine["prompt_id"]),
        reward=None if scores is None else _mean_of(scores["score"], scores["prompt_id"]),
        reward_model=reward_model,
    )


def policy_tests(
    today: PolicyDay | None, earlier: Sequence[PolicyDay], params: PolicyParams
) -> list[SpaceTest]:
    """Tests of today's completions against those of `earlier` days, always the same three."""
    before = _comparable_days(today, earlier, params)
    same_judge = [d for d in before if today and d.reward_model == today.reward_model]
    return [
        _compare_means(
            "mean_reward",
            params.reward_effect,
            [d.reward for d in same_judge if d.reward is not None],
            today,
            None if today is None else today.reward,
            params,
        ),
        _compare_means(
            "refusals",
            params.refusal_effect,
            [d.refused for d in before],
            today,
            None if today is None else today.refused,
            params,
        ),
        _compare_means(
            "mean_length",
            params.length_effect,
            [d.length for d in before],
            today,
            None if today is None else today.length,
            params,
        ),
    ]


def _comparable_days(
    today: PolicyDay | None, earlier: Sequence[PolicyDay], params: PolicyParams
) -> list[PolicyDay]:
    """The days since this policy version began to complete the project's prompts."""
    if today is None:
        return []
    first = (date.fromisoformat(today.day) - timedelta(days=params.policy_days)).isoformat()
    inside = sorted((d for d in earlier if first <= d.day < today.day), key=lambda d: d.day)
    changes = [i for i, d in enumerate(inside) if d.policy != today.policy]
    return inside[changes[-1] + 1 if changes else 0 :]


def _compare_means(
    detector: str,
    threshold: float,
    earlier: Sequence[PromptMean],
    today: PolicyDay | None,
    now: PromptMean | None,
    params: WindowParams,
) -> SpaceTest:
    before = _pool(earlier)
    n_before, n_now = (0 if side is None else side.n for side in (before, now))
    evidence: dict[str, Any] = {}
    if today is not None:
        evidence |= {"policy": today.policy, "n_days": len(earlier)}
        if detector == "mean_reward":
            evidence["reward_model"] = today.reward_model
    result = None
    if today is None:
        evidence["reason"] = "no completions by a policy of this project on this day"
    elif now is None:
        evidence["reason"] = "no reward model scored the completions of this day"
    elif before is None or n_before < params.min_reference:
        evidence["reason"] = (
            f"{n_before} prompts on earlier days of {today.policy}"
            + (f" scored by {today.reward_model}" if detector == "mean_reward" else "")
            + f"; {params.min_reference} are needed"
        )
    elif n_now < params.min_prompts:
        evidence["reason"] = f"{n_now} prompts on this day; {params.min_prompts} are needed"
    else:
        result = _run_test(detector, before, now)
        evidence |= {"mean_reference": before.mean, "mean_current": now.mean}
    return SpaceTest(SPACE, detector, threshold, result, n_before, n_now, evidence)


def _run_test(detector: str, before: PromptMean, now: PromptMean) -> TestResult:
    if detector == "refusals":
        # The variance of a share is known from its mean; a sample without refusals has none.
        p = (before.mean * before.n + now.mean * now.n) / (before.n + now.n)
        before, now = (side.model_copy(update={"variance": p * (1 - p)}) for side in (before, now))
    test = mean_difference(
        (before.mean, before.variance, before.n), (now.mean, now.variance, now.n)
    )
    effect = test.effect
    if detector == "refusals":
        effect = abs(test.statistic)
    elif detector == "mean_length" and test.statistic:
        effect = abs(test.statistic) / max(before.mean, 1.0)
    # in the unit of its threshold
    return replace(test, statistic=math.copysign(effect, test.statistic), effect=effect)


def _collect_scores(
    completions: pd.DataFrame, comparisons: pd.DataFrame, predictions: pd.DataFrame
) -> tuple[pd.DataFrame | None, str | None]:
    """Columns prompt_id and score of those that were compared, and the reward model. Repeats, whose
    completions are of earlier days, are left out.
    """
    compared = comparisons[
        comparisons["completion_a_id"].isin(completions["completion_id"])
        | comparisons["completion_b_id"].isin(completions["completion_id"])
    ]
    own_predictions = predictions[predictions["comparison_id"].isin(compared["comparison_id"])]
    if own_predictions.empty:
        return None, None
    label = str(own_predictions["reward_model"].mode().iloc[0])
    joined = compared.merge(
        own_predictions[own_predictions["reward_model"] == label], on="comparison_id"
    )
    sides = [
        joined[["prompt_id", f"completion_{side}_id", f"score_{side}"]].set_axis(
            ["prompt_id", "completion_id", "score"], axis=1
        )
        for side in "ab"
    ]
    scores = pd.concat(sides).drop_duplicates("completion_id")
    return scores[scores["completion_id"].isin(completions["completion_id"])], label


def _mean_of(values: "pd.Series[float]", prompts: "pd.Series[str]") -> PromptMean:
    """Over prompts: completions of one prompt resemble each other."""
    means = values.groupby(prompts).mean()
    variance = float(means.var()) if len(means) > 1 else 0.0
    return PromptMean(n=len(means), mean=float(means.mean()), variance=variance)


def _pool(days: Sequence[PromptMean]) -> PromptMean | None:
    """All prompts of several days as one sample."""
    n = sum(day.n for day in days)
    if n == 0:
        return None
    mean = sum(day.n * day.mean for day in days) / n
    squares = sum((d.n - 1) * d.variance + d.n * (d.mean - mean) ** 2 for d in days)
    return PromptMean(n=n, mean=mean, variance=squares / max(n - 1, 1))

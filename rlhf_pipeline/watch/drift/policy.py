"""Summarises the deployed policy by day: mean reward, refusals and length of its completions.

Scores of two reward models have no common scale, so each day names the one that gave its rewards.
"""

import re

import pandas as pd
from pydantic import Field

from rlhf_pipeline.core.records import Record


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

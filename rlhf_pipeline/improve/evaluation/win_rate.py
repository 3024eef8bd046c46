"""Compares completions of two policies by win rate and by correct checkable answers."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pandas as pd

from rlhf_pipeline.core.intervals import Floats, mean_over_prompts
from rlhf_pipeline.core.records import (
    CategoryComparison,
    DimensionComparison,
    DimensionHead,
    Interval,
)
from rlhf_pipeline.generate.prompts import is_right


def score_wins(score_candidate: Floats, score_champion: Floats) -> Floats:
    """1 if the candidate's score is higher, 0 if lower, 0.5 if equal; all arrays (n,)."""
    return np.asarray(0.5 + 0.5 * np.sign(score_candidate - score_champion), dtype=np.float64)


def win_rate(
    samples: pd.DataFrame,
    member_wins: Floats | None = None,
    *,
    seed: int,
    n_resamples: int = 2000,
) -> Interval:
    """Share of prompts won by the candidate, ties count half. `samples` has prompt_id,
    score_candidate and score_champion. The interval knows the prompts' error, and the judge's with
    `member_wins` (M, n), the wins by each of its members.
    """
    won = score_wins(samples["score_candidate"].to_numpy(), samples["score_champion"].to_numpy())
    rate = mean_over_prompts(samples.assign(win=won), "win", seed=seed, n_resamples=n_resamples)
    if member_wins is None:
        return rate
    of_prompt = 1 / samples.groupby("prompt_id")["prompt_id"].transform("size").to_numpy()
    return add_judge_error(rate, member_wins @ of_prompt / rate.n)


def add_judge_error(rate: Interval, by_member: Floats) -> Interval:
    """The interval of a win rate widened by the error of its judge, an ensemble whose members each
    give the win rates `by_member` (M,).

    Each member is fitted on prompts drawn with replacement, so the members' variance is a bootstrap
    estimate of the judge's (Efron 1979). It is added to the prompts' variance, with Student's t at
    Satterthwaite's degrees of freedom (1946), as M is small. A judge of one member shows no error.
    It does not contain errors that all members share, such as a liking of long texts.

    >>> rate = Interval(value=0.6, low=0.55, high=0.65, n=300)
    >>> wider = add_judge_error(rate, np.array([0.58, 0.6, 0.62, 0.6]))
    >>> round(wider.low, 2), round(wider.high, 2)
    (0.54, 0.66)
    """
    from scipy.special import ndtri, stdtrit

    if len(by_member) < 2 or (variance := float(np.var(by_member, ddof=1))) == 0:
        return rate
    tail = (1 + rate.level) / 2
    halves = []
    for half in (rate.value - rate.low, rate.high - rate.value):
        own = (half / float(ndtri(tail))) ** 2
        freedom = (len(by_member) - 1) * (1 + own / variance) ** 2
        halves.append(float(stdtrit(freedom, tail)) * (own + variance) ** 0.5)
    low, high = rate.value - halves[0], rate.value + halves[1]
    return rate.model_copy(update={"low": max(0.0, low), "high": min(1.0, high)})


@dataclass(frozen=True)
class CheckableAnswers:
    """Shares of correct answers. `difference` is candidate minus champion, paired by prompt, so
    that the difficulty of prompts cancels.
    """

    candidate: Interval
    champion: Interval
    difference: Interval


def grade_answers(references: pd.Series, completions: pd.Series) -> Floats:
    """Grades (n,): 1 correct, 0 wrong, NaN if the prompt has no reference."""
    return np.array(
        [
            float("nan") if pd.isna(reference) else float(is_right(reference, text))
            for reference, text in zip(references, completions, strict=True)
        ]
    )


def compare_checkable_answers(
    samples: pd.DataFrame, *, seed: int, n_resamples: int = 2000
) -> CheckableAnswers | None:
    """Compare grades in `samples`, with columns prompt_id, right_candidate and right_champion; None
    if no prompt has a checkable answer.
    """
    checked = samples.dropna(subset=["right_candidate", "right_champion"])
    if checked.empty:
        return None
    paired = checked.assign(difference=checked["right_candidate"] - checked["right_champion"])
    candidate, champion, difference = (
        mean_over_prompts(paired, column, seed=seed, n_resamples=n_resamples)
        for column in ("right_candidate", "right_champion", "difference")
    )
    return CheckableAnswers(candidate, champion, difference)


def compare_by_category(
    samples: pd.DataFrame, *, min_prompts: int, seed: int, n_resamples: int = 2000
) -> tuple[CategoryComparison, ...]:
    """The comparison in each category with at least `min_prompts` prompts, largest first; smaller
    ones show chance.
    """
    sizes = samples.groupby("category")["prompt_id"].nunique()
    large = sizes[sizes >= min_prompts].sort_index().sort_values(ascending=False, kind="stable")
    drawn: dict[str, Any] = {"seed": seed, "n_resamples": n_resamples}
    compared = []
    for category in large.index:
        own = samples[samples["category"] == category]
        paired = own.assign(reward_difference=own["score_candidate"] - own["score_champion"])
        answers = compare_checkable_answers(own, **drawn)
        compared.append(
            CategoryComparison(
                category=str(category),
                win_rate=win_rate(own, **drawn),
                reward_difference=mean_over_prompts(paired, "reward_difference", **drawn),
                checkable_difference=answers.difference if answers else None,
            )
        )
    return tuple(compared)


def compare_by_dimension(
    samples: pd.DataFrame,
    heads: Sequence[DimensionHead],
    scores: Mapping[str, Floats],
    *,
    seed: int,
    n_resamples: int = 2000,
) -> tuple[DimensionComparison, ...]:
    """The comparison in the dimension of each of `heads`, without figures where it has none.
    `scores` by dimension are those of all candidate's completions in `samples`, then of all
    champion's.
    """
    drawn: dict[str, Any] = {"seed": seed, "n_resamples": n_resamples}
    compared = []
    for head in heads:
        if not head.has_head:
            compared.append(DimensionComparison(head=head))
            continue
        candidate, champion = np.split(scores[head.dimension], 2)
        own = samples.assign(
            score_candidate=candidate, score_champion=champion, gap=candidate - champion
        )
        compared.append(
            DimensionComparison(
                head=head,
                win_rate=win_rate(own, **drawn),
                score_difference=mean_over_prompts(own, "gap", **drawn),
            )
        )
    return tuple(compared)

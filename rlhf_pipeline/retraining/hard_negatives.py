"""Finds hard negatives: pairs of a prompt's completions that nobody compared and that are close."""

from collections.abc import Mapping
from itertools import combinations
from typing import NamedTuple

import numpy as np
import pandas as pd

from rlhf_pipeline.calibration.identity import NoCalibration
from rlhf_pipeline.evaluation import CompletionJudge
from rlhf_pipeline.frames import RETRAINING_SET, concat
from rlhf_pipeline.prompts.references import is_right
from rlhf_pipeline.records import content_id

ORIGIN = "hard_negative"


class Contrast(NamedTuple):
    """A completion, a worse one of the same prompt, and P(the first is preferred)."""

    chosen: str
    rejected: str
    p: float
    is_wrong_answer: bool


def add_hard_negatives(
    selected: pd.DataFrame,
    pairs: pd.DataFrame,
    judge: CompletionJudge,
    n: int,
    *,
    confidence: float,
    references: Mapping[str, str],
) -> pd.DataFrame:
    """`selected` (RETRAINING_SET) and up to `n` further rows on its prompts, at most one a prompt,
    the hardest ones: all in the order of their information times weight.

    The completions are those of `pairs` (PREFERENCE_PAIRS). Where a prompt has a reference, a right
    answer is chosen and the wrong one that `judge` likes most rejected, as long as it likes the
    right one better. Elsewhere its favourite is chosen, and the completion rejected that comes
    closest and that it still finds worse with a probability of `confidence`.
    """
    if not n:
        return selected
    used = pairs[pairs["prompt_id"].isin(selected["prompt_id"])].sort_values("comparison_id")
    compared = {frozenset(sides) for sides in zip(used["chosen"], used["rejected"], strict=True)}
    found = []
    for (prompt_id, prompt), of_prompt in used.groupby(["prompt_id", "prompt"], sort=True):
        texts = sorted({*of_prompt["chosen"], *of_prompt["rejected"]})
        scores = np.asarray(judge.reward_model.score([prompt] * len(texts), texts))
        contrast = _find_contrast(
            dict(zip(texts, scores.tolist(), strict=True)),
            compared,
            judge,
            confidence,
            references.get(prompt_id),
        )
        if contrast is not None:
            found.append(_build_row(prompt_id, prompt, contrast, str(of_prompt["day"].max())))
    if not found:
        return selected
    hardest = pd.DataFrame(found).sort_values(
        ["information", "comparison_id"], ascending=[False, True]
    )
    both = concat([selected, hardest.head(n)], RETRAINING_SET)
    ranks = (both["information"] * both["weight"]).sort_values(ascending=False, kind="stable")
    return both.loc[ranks.index].reset_index(drop=True)


def _find_contrast(
    scores: Mapping[str, float],
    compared: set[frozenset[str]],
    judge: CompletionJudge,
    confidence: float,
    reference: str | None,
) -> Contrast | None:
    calibrator = judge.calibrator or NoCalibration()
    right = {text: reference is not None and is_right(reference, text) for text in scores}
    ranked = sorted(scores, key=lambda text: (-scores[text], text))
    candidates = []
    for better, worse in combinations(ranked, 2):
        if frozenset((better, worse)) in compared:
            continue
        p = float(calibrator.transform(np.array([scores[better] - scores[worse]]))[0])
        is_wrong_answer = right[better] and not right[worse]
        is_clear = better == ranked[0] and p >= confidence
        if is_wrong_answer or (is_clear and right[better] >= right[worse]):
            candidates.append(Contrast(better, worse, p, is_wrong_answer))
    # A wrong answer first, then the closest completion.
    return min(candidates, key=lambda c: (not c.is_wrong_answer, c.p, c), default=None)


def _build_row(prompt_id: str, prompt: str, found: Contrast, day: str) -> dict[str, object]:
    what = "wrong answer" if found.is_wrong_answer else "close completion"
    return {
        "comparison_id": content_id("hard negative", prompt_id, found.chosen, found.rejected),
        "prompt_id": prompt_id,
        "prompt": prompt,
        "chosen": found.chosen,
        "rejected": found.rejected,
        "margin": max(0.0, 2 * found.p - 1),
        "weight": 1.0,
        "origin": ORIGIN,
        "information": 1 - abs(2 * found.p - 1),
        "difficulty": 1 - abs(2 * found.p - 1),
        "reason": f"hard negative: {what}, reward model gives {found.p:.2f} to the chosen one",
        "split": "train",
        "day": day,
    }

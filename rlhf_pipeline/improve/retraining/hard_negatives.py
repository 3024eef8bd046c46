"""Finds hard negatives: pairs of a prompt's completions that nobody compared and that are close."""

from collections.abc import Mapping

import numpy as np
import pandas as pd

from rlhf_pipeline.core.frames import RETRAINING_SET, concat
from rlhf_pipeline.core.records import content_id
from rlhf_pipeline.improve.evaluation import CompletionJudge
from rlhf_pipeline.improve.retraining.selection import prefers_wrong_answer
from rlhf_pipeline.learn.calibration.identity import NoCalibration

ORIGIN = "hard_negative"


def add_hard_negatives(
    selected: pd.DataFrame,
    pairs: pd.DataFrame,
    judge: CompletionJudge,
    n: int,
    *,
    confidence: float,
    references: Mapping[str, str] | None = None,
) -> pd.DataFrame:
    """`selected` (RETRAINING_SET) and up to `n` further rows on its prompts, at most one a prompt,
    the hardest ones: all in the order of their information times weight.

    The completions are those of `pairs` (PREFERENCE_PAIRS). The one that `judge` likes most is
    chosen, and that one rejected which comes closest, was not compared with it, and is still worse
    with a probability of `confidence`. `references` are the right answers by prompt_id: a row that
    prefers a wrong answer to the right one is left out.
    """
    if not n:
        return selected
    used = pairs[pairs["prompt_id"].isin(selected["prompt_id"])].sort_values("comparison_id")
    by_prompt = used.groupby(["prompt_id", "prompt"], sort=True)
    negatives = [row for _, own in by_prompt if (row := _find_row(own, judge, confidence))]
    if not negatives:
        return selected
    rows = pd.DataFrame(negatives)
    hardest = rows[~prefers_wrong_answer(rows, references or {})].sort_values(
        ["information", "comparison_id"], ascending=[False, True]
    )
    both = concat([selected, hardest.head(n)], RETRAINING_SET)
    ranks = (both["information"] * both["weight"]).sort_values(ascending=False, kind="stable")
    return both.loc[ranks.index].reset_index(drop=True)


def _find_row(
    pairs: pd.DataFrame, judge: CompletionJudge, confidence: float
) -> dict[str, object] | None:
    """The hard negative of one prompt, from its pairs."""
    prompt_id, prompt = pairs["prompt_id"].iloc[0], pairs["prompt"].iloc[0]
    texts = sorted({*pairs["chosen"], *pairs["rejected"]})
    scores = np.asarray(judge.reward_model.score([prompt] * len(texts), texts))
    best = int(scores.argmax())
    p = (judge.calibrator or NoCalibration()).transform(scores[best] - scores)
    sides = zip(pairs["chosen"], pairs["rejected"], strict=True)
    compared = {text for pair in sides if texts[best] in pair for text in pair}
    open_ones = [i for i, text in enumerate(texts) if text not in compared and p[i] >= confidence]
    if not open_ones:
        return None
    worse = min(open_ones, key=lambda i: (p[i], texts[i]))
    certainty = float(2 * p[worse] - 1)
    return {
        "comparison_id": content_id("hard negative", prompt_id, texts[best], texts[worse]),
        "prompt_id": prompt_id,
        "prompt": prompt,
        "chosen": texts[best],
        "rejected": texts[worse],
        "margin": certainty,
        "weight": 1.0,
        "origin": ORIGIN,
        "information": 1 - certainty,
        "difficulty": 1 - certainty,
        "reason": f"hard negative: reward model gives {p[worse]:.2f} to the chosen one",
        "split": "train",
        "day": str(pairs["day"].max()),
    }

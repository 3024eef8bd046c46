"""Share of checkable answers that are right, for two policies on the same prompts. Knows
references; knows no reward model.
"""

from dataclasses import dataclass

import numpy as np
import pandas as pd

from rlhf_pipeline.intervals import Floats, mean_over_prompts
from rlhf_pipeline.prompts import is_right
from rlhf_pipeline.records import Interval


@dataclass(frozen=True)
class CheckableAnswers:
    """`difference` is candidate minus champion, paired by prompt: a question hard for both tells
    nothing about either.
    """

    candidate: Interval
    champion: Interval
    difference: Interval


def grade_answers(references: pd.Series, completions: pd.Series) -> Floats:
    """1 right, 0 wrong, NaN where the prompt has no reference. (n,)"""
    return np.array(
        [
            float("nan") if pd.isna(reference) else float(is_right(reference, text))
            for reference, text in zip(references, completions, strict=True)
        ]
    )


def compare_checkable_answers(
    samples: pd.DataFrame, *, seed: int, n_resamples: int = 2000
) -> CheckableAnswers | None:
    """From `samples` with prompt_id, right_candidate and right_champion; None where no prompt has a
    checkable answer.
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

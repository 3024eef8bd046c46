"""Applies experts' decisions on disputed comparisons to votes and labels."""

from collections.abc import Mapping

import pandas as pd

from rlhf_pipeline.votes.counting import counting


def drop_overruled(votes: pd.DataFrame, decided: Mapping[str, str | None]) -> pd.DataFrame:
    """The counting votes of VOTES without those against the choice that an expert decided on.

    `decided`: choice by comparison. So a pair rests on the votes that agree with the expert; a
    decision that nobody's vote agrees with, or for a tie, gives no pair.
    """
    cast = counting(votes)
    choice = cast["comparison_id"].map(decided)
    return cast[choice.isna() | (choice == cast["choice"])]


def decide_labels(labels: pd.DataFrame, decided: Mapping[str, str | None]) -> pd.DataFrame:
    """SOFT_LABELS with the certainty of a decision for side a or b in place of the annotator
    model's probability, which rests on the overruled votes too.
    """
    sure = labels["comparison_id"].map(decided).map({"a": 1.0, "b": 0.0})
    certain = {name: sure.fillna(labels[name]) for name in ("p_a", "p_low", "p_high")}
    return labels.assign(**certain)

"""Applies experts' decisions on disputed comparisons to votes."""

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

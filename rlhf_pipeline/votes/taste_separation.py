"""Comparisons before and since a change of taste. Knows frames of votes and comparisons; knows no
model and no detector.
"""

import pandas as pd

from rlhf_pipeline.frames import COMPARISONS, VOTES, check_frame
from rlhf_pipeline.votes.taste_changes import TasteChanges

BEFORE = "before the change: "


def separate_old_completions(
    comparisons: pd.DataFrame, votes: pd.DataFrame, changes: TasteChanges
) -> pd.DataFrame:
    """COMPARISONS in which those that nobody judged since the last change of their category have
    completions of their own.

    The joint model gives a completion one utility in all its comparisons. After a change of taste
    that would teach the new comparisons the old taste, which pairs from before it are down-weighted
    to forget. Annotators stay the same people: their reliabilities are learnt from both. What was
    judged on both sides of the change is of today, with all its votes, as of pairs. Raises
    FrameError.
    """
    checked = check_frame(comparisons, COMPARISONS)
    if not changes:
        return checked
    last = check_frame(votes, VOTES).groupby("comparison_id")["seq"].max()
    is_old = checked["comparison_id"].map(last).fillna(0) < changes.first_seq(checked["category"])
    ids = {
        name: checked[name].mask(is_old, BEFORE + checked[name])
        for name in ("completion_a_id", "completion_b_id")
    }
    return check_frame(checked.assign(**ids), COMPARISONS)

"""Which of several pairs of one comparison counts. Knows PREFERENCE_PAIRS; knows nothing of how
they were made.
"""

import pandas as pd

from rlhf_pipeline.frames import PREFERENCE_PAIRS, VOTES, check_frame


def latest_pairs(
    pairs: pd.DataFrame, votes: pd.DataFrame | None = None, *, up_to_seq: int | None = None
) -> pd.DataFrame:
    """One row per comparison: a comparison judged on several days has a pair in each, and the last
    holds all its votes.

    `votes` are those of the same days: a comparison that came to be undecided on a later
    day has no pair there, and by them its earlier pair is seen to be out of date and left out. With
    `up_to_seq`, pairs and votes that come later are as good as not there. Sorted by comparison_id;
    the order of the given rows is irrelevant.
    """
    checked = check_frame(pairs, PREFERENCE_PAIRS).sort_values(["comparison_id", "max_seq", "day"])
    if up_to_seq is not None:
        checked = checked[checked["max_seq"] <= up_to_seq]
    latest = checked.drop_duplicates("comparison_id", keep="last").reset_index(drop=True)
    return (
        latest
        if votes is None or latest.empty
        else _drop_outdated(latest, check_frame(votes, VOTES), up_to_seq)
    )


def _drop_outdated(
    latest: pd.DataFrame, votes: pd.DataFrame, up_to_seq: int | None
) -> pd.DataFrame:
    """Without pairs of comparisons that were judged again after the last vote of the pair's day."""
    seen = latest["day"].map(votes.groupby("day")["seq"].max()).fillna(latest["max_seq"])
    known = votes if up_to_seq is None else votes[votes["seq"] <= up_to_seq]
    judged = latest["comparison_id"].map(known.groupby("comparison_id")["seq"].max()).fillna(0)
    return latest[judged <= seen].reset_index(drop=True)

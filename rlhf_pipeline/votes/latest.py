"""Which of several pairs of one comparison counts. Knows PREFERENCE_PAIRS; knows nothing of how they were made."""

import pandas as pd

from rlhf_pipeline.frames import PREFERENCE_PAIRS, check_frame


def latest_pairs(pairs: pd.DataFrame) -> pd.DataFrame:
    """One row per comparison: a comparison judged on several days has a pair in each, and the last holds all its votes.

    Sorted by comparison_id; the order of the given rows is irrelevant.
    """
    checked = check_frame(pairs, PREFERENCE_PAIRS).sort_values(["comparison_id", "max_seq", "day"])
    return checked.drop_duplicates("comparison_id", keep="last").reset_index(drop=True)

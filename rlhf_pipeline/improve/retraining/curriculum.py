"""Orders the rows of a retraining set from easy to hard."""

import pandas as pd

from rlhf_pipeline.core.errors import NotEnoughVotes


def order_easy_to_hard(rows: pd.DataFrame) -> pd.DataFrame:
    """Rows by `difficulty`, easiest first; ties keep their order.

    Difficulty is 2 (1 - p) with the reward model's p that the chosen completion is preferred, and
    at most 1: 0 where it is certain.
    """
    return rows.sort_values("difficulty", kind="stable", ignore_index=True)


def take_exactly(rows: pd.DataFrame, n: int) -> pd.DataFrame:
    """The first `n` rows, most informative first, from easy to hard. Raises NotEnoughVotes for
    fewer.
    """
    if len(rows) < n:
        raise NotEnoughVotes(
            f"The retraining set has {len(rows)} rows, not {n}. Ask for fewer, or raise max_pairs "
            "or hard_negatives and retrain."
        )
    return order_easy_to_hard(rows.head(n))

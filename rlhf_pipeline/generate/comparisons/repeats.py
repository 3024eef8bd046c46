"""Repeats comparisons with sides swapped, to measure how consistent an annotator is.

Self-consistency compares the first judgement of a pair with its repeat. Annotators do not see which
comparisons are repeats, and swapped sides cancel a preference for one side.
"""

import pandas as pd

from rlhf_pipeline.core.frames import COMPARISONS
from rlhf_pipeline.core.records import content_hash, content_id

SWAPPED_COLUMNS = {
    "completion_a_id": "completion_b_id",
    "completion_a": "completion_b",
    "model_version_a": "model_version_b",
}


def comparison_id(
    day: str,
    prompt_id: str,
    completion_a_id: str,
    completion_b_id: str,
    repeat_of: str | None = None,
) -> str:
    """Id of a pair on a day. A repeat's id also depends on the comparison it repeats, so it differs
    from the pair's own id and from other repeats'.
    """
    return content_id("comparison", day, prompt_id, completion_a_id, completion_b_id, repeat_of)


def shuffle_by_seed(comparisons: pd.DataFrame, seed: int) -> pd.DataFrame:
    """Shuffle the rows by `seed`; a row's place depends only on its own id, not on its previous
    place.
    """
    order = (
        comparisons["comparison_id"]
        .map(lambda c: content_hash("position", seed, c))
        .sort_values()
        .index
    )
    return comparisons.loc[order].reset_index(drop=True)


def select_repeats(
    fresh: pd.DataFrame, earlier: pd.DataFrame, n: int, *, day: str, seed: int
) -> pd.DataFrame:
    """Select up to `n` repeats: `earlier` comparisons first, while there are enough, then the first
    ones of `fresh`.

    `fresh` is in the order of the day; its repeats come after all of it, so half a day lies between
    a pair and its repeat as long as at most half of the day is repeated. Repeats are never
    repeated, and a comparison is repeated at most once.
    """
    done = set(earlier["repeat_of"].dropna())
    open_ = earlier[
        (earlier["day"] < day) & earlier["repeat_of"].isna() & ~earlier["comparison_id"].isin(done)
    ]
    old = shuffle_by_seed(open_, seed)[:n]
    return pd.concat(
        [_swap_sides(old, day, seed), _swap_sides(fresh[: n - len(old)], day, seed)],
        ignore_index=True,
    )


def _swap_sides(comparisons: pd.DataFrame, day: str, seed: int) -> pd.DataFrame:
    renaming = SWAPPED_COLUMNS | {b: a for a, b in SWAPPED_COLUMNS.items()}
    repeats = comparisons.rename(columns=renaming)[list(COMPARISONS.columns)].reset_index(drop=True)
    repeats = repeats.assign(day=day, seed=seed, repeat_of=comparisons["comparison_id"].to_numpy())
    id_parts = zip(
        repeats["prompt_id"],
        repeats["completion_a_id"],
        repeats["completion_b_id"],
        repeats["repeat_of"],
        strict=True,
    )
    return repeats.assign(comparison_id=[comparison_id(day, *row) for row in id_parts])

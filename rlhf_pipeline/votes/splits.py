"""Which split a prompt belongs to. Knows the prompt's id and what was given with an import, so no
run can ever move a prompt.
"""

import hashlib
from typing import Literal

import pandas as pd

Split = Literal["train", "calib", "test"]

SPLITS: dict[Split, float] = {"train": 0.70, "calib": 0.15, "test": 0.15}


def split_of(prompt_id: str) -> Split:
    """Split by a hash of the prompt: all comparisons of one prompt fall together, in every run and
    every project.

    >>> split_of("5a7c5bf4a6d2e6a0c2a1") == split_of("5a7c5bf4a6d2e6a0c2a1")
    True
    """
    # Salted, so that the split is independent of any other use of the id's digits.
    digest = hashlib.sha256(f"split:{prompt_id}".encode()).digest()
    position = int.from_bytes(digest[:8], "big") / 2**64
    reached = 0.0
    for split, share in SPLITS.items():
        reached += share
        if position < reached:
            return split
    return "test"


def splits_of(comparisons: pd.DataFrame) -> "pd.Series[str]":
    """The split of each COMPARISONS row, by its index: the one given with it, else that of its
    split group, else of its prompt.
    """
    group = comparisons["split_group"].fillna(comparisons["prompt_id"])
    by_hash = group.map({name: split_of(name) for name in group.unique()})
    return comparisons["split"].fillna(by_hash)


def prompts_in_several_splits(pairs: pd.DataFrame) -> list[str]:
    """Ids of prompts with PREFERENCE_PAIRS in several splits, as an import can give them: what is
    learnt of such a prompt is judged on it too.
    """
    n_splits = pairs.groupby("prompt_id")["split"].nunique()
    return [str(name) for name in n_splits.index[n_splits > 1]]

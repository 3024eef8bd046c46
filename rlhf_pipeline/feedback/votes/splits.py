"""Assigns prompts to the splits train, calib and test."""

import hashlib
from typing import Literal

import pandas as pd

Split = Literal["train", "calib", "test"]

SPLITS: dict[Split, float] = {"train": 0.70, "calib": 0.15, "test": 0.15}


def split_of(prompt_id: str) -> Split:
    """The split of a prompt by its hash: all comparisons of a prompt share it, in every run and
    project.

    >>> split_of("5a7c5bf4a6d2e6a0c2a1") == split_of("5a7c5bf4a6d2e6a0c2a1")
    True
    """
    # Salted, so that the split is independent of other uses of the id.
    digest = hashlib.sha256(f"split:{prompt_id}".encode()).digest()
    position = int.from_bytes(digest[:8], "big") / 2**64
    reached = 0.0
    for split, share in SPLITS.items():
        reached += share
        if position < reached:
            return split
    return "test"


def splits_of(comparisons: pd.DataFrame) -> "pd.Series[str]":
    """The split of each COMPARISONS row, with the same index: the imported split, else the hash of
    its split group, else of its prompt.
    """
    group = comparisons["split_group"].fillna(comparisons["prompt_id"])
    by_hash = group.map({name: split_of(name) for name in group.unique()})
    return comparisons["split"].fillna(by_hash)


def prompts_in_several_splits(pairs: pd.DataFrame) -> list[str]:
    """Ids of prompts with PREFERENCE_PAIRS in several splits, which imports can cause: a model is
    then tested on prompts it was trained on.
    """
    n_splits = pairs.groupby("prompt_id")["split"].nunique()
    return [str(name) for name in n_splits.index[n_splits > 1]]


def select_test_pairs(pairs: pd.DataFrame) -> pd.DataFrame:
    """The rows of PREFERENCE_PAIRS of the test split, in order, re-indexed from 0."""
    return pairs[pairs["split"] == "test"].reset_index(drop=True)

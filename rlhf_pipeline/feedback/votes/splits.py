"""Assigns prompts to the splits train, calib and test, and records openings of the test split."""

import hashlib
import logging
from collections.abc import Callable
from typing import Literal

import pandas as pd

from rlhf_pipeline.core.config import code_commit
from rlhf_pipeline.core.errors import ConfigurationError, FrameError
from rlhf_pipeline.core.frames import frame_hash
from rlhf_pipeline.core.records import Opening, utc_now

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


log = logging.getLogger(__name__)

TEST = "test"


Recorder = Callable[[Opening], None]


def log_opening(opening: Opening) -> None:
    """Write the opening to Python's log: for scripts and tests without a registry. Assets and
    commands record in MLflow.
    """
    log.info(
        "test split opened: %s for %s, %d pairs %s, commit %s",
        opening.model,
        opening.purpose,
        opening.n_pairs,
        opening.data_hash[:12],
        (opening.commit or "none")[:12],
    )


def open_test_split(
    pairs: pd.DataFrame, *, model: str, purpose: str, record: Recorder = log_opening
) -> pd.DataFrame:
    """The rows of `pairs` with split test, in order, re-indexed from 0. Calls `record` first.

    If `record` raises, nothing is returned. Without test pairs nothing is recorded. Raises
    FrameError without a column `split`, ConfigurationError if model or purpose is blank.
    """
    if not model.strip() or not purpose.strip():
        raise ConfigurationError(
            "model and purpose must not be blank: both are recorded when the test split is opened."
        )
    test = pairs[_is_test(pairs)].reset_index(drop=True)
    if len(test):
        record(
            Opening(
                opened_at=utc_now(),
                model=model,
                purpose=purpose,
                commit=code_commit(),
                n_pairs=len(test),
                data_hash=frame_hash(test),
            )
        )
    return test


def n_test_pairs(pairs: pd.DataFrame) -> int:
    """Number of test pairs; does not count as a look. Raises FrameError without a column
    `split`.
    """
    return int(_is_test(pairs).sum())


def _is_test(pairs: pd.DataFrame) -> "pd.Series[bool]":
    if "split" not in pairs.columns:
        raise FrameError("The pairs have no column split. Make them with preference_pairs.")
    return pairs["split"] == TEST

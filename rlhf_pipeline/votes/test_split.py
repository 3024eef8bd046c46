"""Opens the test split; every opening is recorded with time, model and purpose.

An accuracy on test pairs is unbiased only if no choice depends on it; repeated looks that keep the
best model are such a choice (Dwork et al. 2015 on re-used holdouts). So each look is recorded
before the pairs are returned, and a test of the source finds code that reads them elsewhere. Choose
on the train and calib splits.
"""

import logging
from collections.abc import Callable
from datetime import datetime

import pandas as pd
from pydantic import Field

from rlhf_pipeline.config import code_commit
from rlhf_pipeline.errors import ConfigurationError, FrameError
from rlhf_pipeline.frames import frame_hash
from rlhf_pipeline.records import Record, utc_now

log = logging.getLogger(__name__)

TEST = "test"


class Opening(Record):
    """Record of one look at test pairs."""

    opened_at: datetime = Field(description="UTC")
    model: str = Field(
        min_length=1,
        description="the evaluated model: name@version, or the hash of weights without a version",
    )
    purpose: str = Field(min_length=1, description="what is computed from the pairs")
    commit: str | None = Field(
        description="git commit of the code, with -dirty if it has changes; None outside a checkout"
    )
    n_pairs: int = Field(ge=0)
    data_hash: str = Field(description="frame_hash of the pairs")


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

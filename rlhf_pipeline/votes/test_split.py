"""The one door to the test split: nobody sees its pairs without a record of when, for which model
and why. Knows frames; knows no registry.

An accuracy on test pairs means what it says only as long as nothing was chosen by it. Who looks
often and keeps the best has chosen. So every look is written down before the pairs are handed out
(Dwork et al. 2015 on what re-used holdouts are worth), and a test of this project's source finds
whoever takes them past this door. What is chosen is chosen on the train and calib splits.
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
    """One look at test pairs."""

    opened_at: datetime = Field(description="UTC")
    model: str = Field(
        min_length=1,
        description="whom they judge: name@version, or the hash of weights that have no version "
        "yet",
    )
    purpose: str = Field(min_length=1, description="what is computed from them")
    commit: str | None = Field(
        description="of the code that looked, with -dirty where it was changed; None outside a "
        "checkout"
    )
    n_pairs: int = Field(ge=0)
    data_hash: str = Field(description="frame_hash of the pairs seen")


Recorder = Callable[[Opening], None]


def log_opening(opening: Opening) -> None:
    """A line of Python's log: for scripts and tests, which have no registry. Assets and the command
    line record in MLflow.
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
    """The rows of `pairs` whose split is test, in their order, numbered from 0; `record` is told
    before they are handed out.

    Where `record` fails nothing is handed out. Without test pairs nothing is opened, and nothing
    recorded. Raises FrameError without a column `split`, ConfigurationError where nobody says for
    which model and why.
    """
    if not model.strip() or not purpose.strip():
        raise ConfigurationError(
            "The test split is opened for a model and a purpose: name both, they are recorded."
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
    """How many there are: no look. Raises FrameError without a column `split`."""
    return int(_is_test(pairs).sum())


def _is_test(pairs: pd.DataFrame) -> "pd.Series[bool]":
    if "split" not in pairs.columns:
        raise FrameError(
            "These pairs have no column split, so nobody can say which are for testing. Make them "
            "with preference_pairs."
        )
    return pairs["split"] == TEST

"""Defines the protocol of a training strategy."""

from pathlib import Path
from typing import ClassVar, Protocol

import pandas as pd
from pydantic import BaseModel

from rlhf_pipeline.protocols import Progress, ignore_progress
from rlhf_pipeline.retraining.candidates import TrainingReport
from rlhf_pipeline.retraining.training import TrainingParams

__all__ = ["Strategy", "TrainingParams", "TrainingReport"]


class Strategy(Protocol):
    """One way to train a candidate policy on preferences.

    The class is instantiated without arguments. `Params` holds the parameters specific to it.

    `train` reads the policy in `policy_folder`, trains on `pairs` (RETRAINING_SET, all of the train
    split) and writes the candidate to `out/model` and the report to `out/report.json`; all its
    other files stay below `out`. `params` has the common parameters and those of every strategy:
    `select_params(Params, params)` returns its own. A call after a kill continues from the last
    complete checkpoint and ends with the same weights; a call after success with the same inputs
    returns the stored report.

    Raises NotEnoughVotes, ExpectationFailed (rows of an evaluation split), ModelNotFound,
    TrainingFailed.
    """

    name: ClassVar[str]
    Params: ClassVar[type[BaseModel]]

    def train(
        self,
        policy_folder: Path,
        pairs: pd.DataFrame,
        out: Path,
        params: TrainingParams,
        *,
        progress: Progress = ignore_progress,
    ) -> TrainingReport: ...

"""The protocol of a training strategy."""

from pathlib import Path
from typing import ClassVar, Protocol

import pandas as pd
from pydantic import BaseModel

from rlhf_pipeline.protocols import Progress, ignore_progress
from rlhf_pipeline.retraining.candidates import TrainingReport
from rlhf_pipeline.retraining.training import TrainingParams

__all__ = ["Strategy", "TrainingParams", "TrainingReport"]


class Strategy(Protocol):
    """One way to make a candidate policy from preferences.

    It is made without arguments. `Params` holds the parameters that it alone has.

    `train` reads the policy in `policy_folder`, trains on `pairs` (RETRAINING_SET, all of the train
    split) and writes the candidate to `out/model` and the report to `out/report.json`; whatever
    else it writes stays below `out`. `params` has the common parameters and those of every
    strategy: `select_params(Params, params)` gives its own. Called again after a kill, it continues
    from the last complete checkpoint and ends with the same weights; called again after success
    with the same inputs, it returns the stored report.

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

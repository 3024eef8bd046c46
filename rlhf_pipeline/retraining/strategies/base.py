"""What every training strategy is given and gives back. Knows no trainer."""

from pathlib import Path
from typing import Protocol

import pandas as pd

from rlhf_pipeline.protocols import Progress, ignore_progress
from rlhf_pipeline.retraining.candidates import TrainingReport
from rlhf_pipeline.retraining.parameters import StrategyParams

__all__ = ["Strategy", "StrategyParams", "TrainingReport"]


class Strategy(Protocol):
    """One way to make a candidate policy from preferences.

    `train` reads the policy in `policy_folder`, trains on `pairs` (RETRAINING_SET, all of the train
    split) and leaves the candidate in `out/model`, the report in `out/report.json`; everything else
    it writes stays below `out` too. Called again after a kill it continues from the last complete
    checkpoint and ends with the same weights; called again after success with the same inputs it
    returns the stored report.

    Raises NotEnoughVotes, ExpectationFailed (rows of an evaluation split), ModelNotFound,
    TrainingFailed.
    """

    name: str

    def train(
        self,
        policy_folder: Path,
        pairs: pd.DataFrame,
        out: Path,
        params: StrategyParams,
        *,
        progress: Progress = ignore_progress,
    ) -> TrainingReport: ...

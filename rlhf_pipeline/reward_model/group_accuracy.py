"""The test accuracy of a reward model, source by source.

One accuracy over several sources says more of their sizes than of the model: it may know one well
and guess in the others.
"""

from collections.abc import Mapping

import pandas as pd

from rlhf_pipeline.errors import NotEnoughData
from rlhf_pipeline.frames import PREFERENCE_PAIRS, check_frame
from rlhf_pipeline.protocols import Progress, ignore_progress
from rlhf_pipeline.records import Interval
from rlhf_pipeline.reward_model.base import RewardModel, margins_of
from rlhf_pipeline.reward_model.held_out_evaluation import accuracy_on, majority_side
from rlhf_pipeline.reward_model.kinds import RewardModelParams
from rlhf_pipeline.reward_model.report import TestAccuracy
from rlhf_pipeline.votes.test_split import Recorder, log_opening, open_test_split


def accuracy_by_group(
    model: RewardModel,
    pairs: pd.DataFrame,
    groups: Mapping[str, str],
    params: RewardModelParams | None = None,
    *,
    ceilings: Mapping[str, Interval] | None = None,
    record: Recorder = log_opening,
    progress: Progress = ignore_progress,
) -> dict[str, TestAccuracy]:
    """The model on the test pairs of each group, largest first; `groups` is comparison id -> name,
    others are left out.

    `majority_side` is the side chosen most often in that group's training pairs; `ceilings` (group
    -> noise ceiling) are set beside the accuracies. The test split is opened once, and `record` is
    told. Raises NotEnoughData where no test pair is of a group.
    """
    params = params or RewardModelParams()
    pairs = check_frame(pairs, PREFERENCE_PAIRS)
    group = pairs["comparison_id"].map(groups)
    test = open_test_split(
        pairs[(pairs["agreement"] > 0.5) & group.notna()],
        model=model.weights_hash,
        purpose="accuracy by group",
        record=record,
    )
    if test.empty:
        raise NotEnoughData(
            f"None of {len(pairs)} pairs is a test pair with a majority and a group. Name groups "
            "of pairs of the test split."
        )
    margins = margins_of(model, test, progress=progress)
    names = test["comparison_id"].map(groups)
    return {
        str(name): accuracy_on(
            test[(names == name).to_numpy()],
            margins[(names == name).to_numpy()],
            majority_side(pairs[group == name]),
            params,
            ceiling=(ceilings or {}).get(str(name)),
        )
        for name in names.value_counts().index
    }

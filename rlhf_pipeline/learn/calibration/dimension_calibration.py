"""Calibration of the reward model's heads of the rubric's dimensions, such as helpful.

A head gets a calibrator as the score does: chosen on the calib split, measured on the test split.
It is reported and not applied, because heads serve no probabilities: completions are compared by
the order and the difference of a head's scores.
"""

from contextlib import suppress

import numpy as np
import pandas as pd

from rlhf_pipeline.core.errors import NotEnoughData
from rlhf_pipeline.core.protocols import Progress, ignore_progress
from rlhf_pipeline.core.records import DimensionCalibration
from rlhf_pipeline.feedback.votes.preference_pairs import read_dimension_votes
from rlhf_pipeline.feedback.votes.taste_changes import NO_CHANGES, TasteChanges
from rlhf_pipeline.learn.calibration.choice import CalibrationParams, VoteRows, choose_calibrator
from rlhf_pipeline.learn.calibration.group_calibration import PredictedVotes, calibration_by_group
from rlhf_pipeline.learn.calibration.identity import NoCalibration
from rlhf_pipeline.learn.reward_model import RewardModel
from rlhf_pipeline.learn.reward_model.base import both_sides
from rlhf_pipeline.learn.reward_model.dimensions import ceiling_in_dimension
from rlhf_pipeline.learn.reward_model.training import change_weights

DIMENSION = "dimension"  # name of the grouping


def calibration_by_dimension(
    calib: pd.DataFrame,
    test: pd.DataFrame,
    reward_model: RewardModel,
    params: CalibrationParams,
    changes: TasteChanges = NO_CHANGES,
    *,
    progress: Progress = ignore_progress,
) -> tuple[DimensionCalibration, ...]:
    """The calibration of each head on single votes in its dimension, from PREFERENCE_PAIRS of the
    calib and the test split; sorted by name, without heads whose dimension no test pair is judged
    in.

    The bootstrap draws prompts. With fewer than `min_pairs` judged pairs in `calib`, or votes for
    one side alone, nothing is measured after calibration. Pairs voted on before a change count
    `weight_before_change`. Raises InvalidScores for a NaN score.
    """
    splits = (calib.assign(is_opened=False), test.assign(is_opened=True))
    pairs = pd.concat(splits, ignore_index=True)
    weighed = pairs[["comparison_id", "chosen_side", "is_opened"]].assign(
        weight=change_weights(pairs, changes, params.weight_before_change)
    )
    votes = read_dimension_votes(pairs).join(weighed, on="row")
    votes = votes[votes["weight"] > 0]
    rows = np.unique(votes["row"].to_numpy(dtype=np.int64))
    if not len(rows):
        return ()
    scores = reward_model.dimension_scores(*both_sides(pairs.iloc[rows]), progress=progress)
    calibrations = []
    for name, own in votes.groupby("dimension", sort=True):
        is_test = own["is_opened"].to_numpy(dtype=bool)
        if name not in scores or not is_test.any():
            continue
        chosen, rejected = np.split(scores[str(name)], 2)
        margins = (chosen - rejected)[np.searchsorted(rows, own["row"])]
        n_chosen = own["n_chosen"].to_numpy(dtype=np.float64)
        n_rejected = own["n"].to_numpy(dtype=np.float64) - n_chosen
        calib_votes, test_votes = (
            VoteRows.of_pairs(own[of], margins[of], n_chosen[of], n_rejected[of])
            for of in (~is_test, is_test)
        )
        calibrations.append(_measure(str(name), own[is_test], calib_votes, test_votes, params))
    return tuple(calibrations)


def _measure(
    name: str, test_pairs: pd.DataFrame, calib: VoteRows, test: VoteRows, params: CalibrationParams
) -> DimensionCalibration:
    calibrator = None
    if calib.n_pairs >= params.min_pairs:
        with suppress(NotEnoughData):  # votes for one side alone, or on one prompt
            calibrator, _ = choose_calibrator(calib, params)
    (calibration,) = calibration_by_group(
        PredictedVotes(
            None if calibrator is None else calibrator.transform(test.margins),
            test.outcomes,
            test.comparison_ids,
            NoCalibration().transform(test.margins),
            test.weights,
            test.groups,
            test.right,
        ),
        {DIMENSION: dict.fromkeys(test.comparison_ids, name)},
        params=params,
    )
    return DimensionCalibration(
        **calibration.model_dump(exclude={"noise_ceiling"}),
        noise_ceiling=ceiling_in_dimension(test_pairs, params),
        method=None if calibrator is None else calibrator.name,
        params={} if calibrator is None else calibrator.to_json(),
        n_fit=calib.n_pairs,
    )

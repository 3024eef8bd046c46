"""Chooses a calibrator on the calib split and measures it on the test split.

The arithmetic of the measures is in `summary`.
"""

import numpy as np
import pandas as pd

from rlhf_pipeline.core.errors import NotEnoughData
from rlhf_pipeline.core.frames import PREFERENCE_PAIRS, check_frame
from rlhf_pipeline.core.protocols import Progress, ignore_progress
from rlhf_pipeline.core.records import CalibrationMetrics, CalibrationReport, ModelVersion
from rlhf_pipeline.feedback.votes import select_test_pairs
from rlhf_pipeline.feedback.votes.taste_changes import NO_CHANGES, TasteChanges
from rlhf_pipeline.learn.calibration.base import Calibrator, Floats
from rlhf_pipeline.learn.calibration.choice import (
    CalibrationParams,
    VoteRows,
    choose_calibrator,
    cross_fit,
    held_out_loss,
    usable_methods,
)
from rlhf_pipeline.learn.calibration.dimension_calibration import calibration_by_dimension
from rlhf_pipeline.learn.calibration.group_calibration import (
    CalibrationContext,
    PredictedVotes,
    calibration_by_group,
)
from rlhf_pipeline.learn.calibration.identity import NoCalibration
from rlhf_pipeline.learn.calibration.metrics import log_loss
from rlhf_pipeline.learn.calibration.summary import calibration_metrics, reliability_table
from rlhf_pipeline.learn.reward_model import RewardModel
from rlhf_pipeline.learn.reward_model.base import margins_of
from rlhf_pipeline.learn.reward_model.training import change_weights


def calibrate_version(
    version: ModelVersion,
    reward_model: RewardModel,
    pairs: pd.DataFrame,
    votes: CalibrationContext,
    params: CalibrationParams,
    *,
    weight_before_change: float | None = None,
    progress: Progress = ignore_progress,
) -> tuple[Calibrator, CalibrationReport]:
    """`calibrate` on PREFERENCE_PAIRS, of all and by source and category, beside the noise
    ceilings.

    Votes before a change get `weight_before_change`, else the weight that the fit of the reward
    model chose, else that of `params`. Raises as `calibrate`.
    """
    weight = (
        version.params.get("weight_before_change")
        if weight_before_change is None
        else weight_before_change
    )
    return calibrate(
        pairs,
        reward_model,
        params
        if weight is None
        else params.model_copy(update={"weight_before_change": float(weight)}),
        reward_model_label=version.label,
        data_hash=version.data_hash or "",
        votes=votes,
        progress=progress,
    )


def calibrate(
    pairs: pd.DataFrame,
    reward_model: RewardModel,
    params: CalibrationParams | None = None,
    *,
    reward_model_label: str,
    data_hash: str,
    votes: CalibrationContext | None = None,
    progress: Progress = ignore_progress,
) -> tuple[Calibrator, CalibrationReport]:
    """The method with the least cross-validated log loss on the calib split, or none; metrics are
    on the test split.

    The calibrator is chosen without the test split. With
    `votes`, the report also has measures of each group; it has those of the heads of the rubric's
    dimensions that votes judge.

    With too few pairs and `allow_uncalibrated` the method is none, without a comparison. Pairs
    voted on before the last change of taste in their category count `weight_before_change` in
    both. Raises NotEnoughData (too few pairs, one class, no test pairs), InvalidScores (a NaN
    score).
    """
    params = params or CalibrationParams()
    votes = votes or CalibrationContext()
    pairs = check_frame(pairs, PREFERENCE_PAIRS).sort_values("comparison_id", ignore_index=True)
    calib = _vote_rows(
        pairs[pairs["split"] == "calib"], reward_model, params, votes.taste_changes, progress
    )
    test_pairs = select_test_pairs(pairs)
    is_thin, n_test = calib.n_pairs < params.min_pairs, len(test_pairs)
    if (is_thin and not params.allow_uncalibrated) or not n_test:
        raise NotEnoughData(
            f"{calib.n_pairs} preference pairs in the calib split ({params.min_pairs} needed) and "
            f"{n_test} in the test split (1 needed). Collect votes on more prompts or lower "
            "min_pairs."
        )
    calibrator, candidates = (NoCalibration(), {}) if is_thin else choose_calibrator(calib, params)
    test = _vote_rows(test_pairs, reward_model, params, votes.taste_changes, progress)
    if not test.n_pairs:
        raise NotEnoughData(
            f"None of {n_test} test pairs counts: none has votes, or all were voted on before a "
            "change after which they weigh 0. Collect more votes."
        )
    return calibrator, _build_report(
        calibrator,
        test,
        params,
        votes,
        reward_model=reward_model_label,
        candidates=candidates,
        data_hash=data_hash,
        n_fit=calib.n_pairs,
        by_dimension=calibration_by_dimension(
            pairs[pairs["split"] == "calib"],
            test_pairs,
            reward_model,
            params,
            votes.taste_changes,
            progress=progress,
        ),
    )


def fit_calibrator(
    pairs: pd.DataFrame,
    reward_model: RewardModel,
    params: CalibrationParams | None = None,
    *,
    progress: Progress = ignore_progress,
) -> tuple[Calibrator, dict[str, float]]:
    """The choice of `calibrate` and each method's cross-validated log loss, without opening the
    test split.

    Raises NotEnoughData (too few pairs in the calib split, one class), InvalidScores
    as `calibrate` does.
    """
    params = params or CalibrationParams()
    pairs = check_frame(pairs, PREFERENCE_PAIRS).sort_values("comparison_id", ignore_index=True)
    calib = _vote_rows(pairs[pairs["split"] == "calib"], reward_model, params, NO_CHANGES, progress)
    if calib.n_pairs < params.min_pairs:
        raise NotEnoughData(
            f"{calib.n_pairs} preference pairs in the calib split, {params.min_pairs} needed. "
            "Collect votes on more prompts."
        )
    return choose_calibrator(calib, params)


def recalibrated_loss(
    pairs: pd.DataFrame,
    reward_model: RewardModel,
    params: CalibrationParams | None = None,
    *,
    method: str | None = None,
    progress: Progress = ignore_progress,
) -> float:
    """Cross-validated log loss in nats per vote under the best calibrator, or under `method`. It
    compares two models by their knowledge, not by their current calibration. If a calibrator
    cannot be fitted, it is the loss of the raw probabilities. Raises NotEnoughData without votes,
    InvalidScores for a NaN score.
    """
    params = params or CalibrationParams()
    rows = _vote_rows(
        pairs.sort_values("comparison_id", ignore_index=True),
        reward_model,
        params,
        NO_CHANGES,
        progress,
    )
    try:
        return min(
            held_out_loss(name, rows, params)
            for name in ([method] if method else usable_methods(rows, params))
        )
    except NotEnoughData:
        return log_loss(
            NoCalibration().transform(rows.margins), rows.outcomes, weights=rows.weights
        )


def cross_fitted_p(
    pairs: pd.DataFrame,
    reward_model: RewardModel,
    calibrator: Calibrator,
    params: CalibrationParams,
    changes: TasteChanges = NO_CHANGES,
    *,
    progress: Progress = ignore_progress,
) -> Floats:
    """P(chosen preferred) of each of the PREFERENCE_PAIRS that `calibrator` was fitted on, (n,), by
    its method fitted on other prompts; 0.5 of pairs without votes.

    A reference for later votes needs these: on its own pairs a calibrator is better than it will
    be. Raises as `calibrate`.
    """
    rows = _vote_rows(
        pairs.sort_values("comparison_id", ignore_index=True),
        reward_model,
        params,
        changes,
        progress,
    )
    p_a = dict(zip(rows.comparison_ids, cross_fit(calibrator.name, rows, params), strict=True))
    of_a = pairs["comparison_id"].map(p_a).fillna(0.5).to_numpy(dtype=np.float64)
    return np.where(pairs["chosen_side"] == "a", of_a, 1 - of_a)


def pairs_that_count(pairs: pd.DataFrame) -> pd.DataFrame:
    """Those of PREFERENCE_PAIRS with votes."""
    return pairs[pairs["n_votes"] > 0].reset_index(drop=True)


def measure_pairs(
    pairs: pd.DataFrame,
    reward_model: RewardModel,
    calibrator: Calibrator,
    params: CalibrationParams,
    *,
    progress: Progress = ignore_progress,
) -> CalibrationMetrics:
    """The metrics of the report of `calibrate`, on PREFERENCE_PAIRS of one taste, which all count
    the same; `n` is the number of comparisons.

    Raises NotEnoughData where none counts, InvalidScores for a NaN score.
    """
    pairs = pairs.sort_values("comparison_id", ignore_index=True)
    rows = _vote_rows(pairs, reward_model, params, NO_CHANGES, progress)
    return _measure(rows, calibrator.transform(rows.margins), params)


def voted_rows(pairs: pd.DataFrame, p_chosen: Floats) -> pd.DataFrame:
    """A row a vote, oldest pair first, as the calibration tests read them: `p` of a, `outcome` 1
    for a vote for a, `group` the prompt.
    """
    order = np.argsort(pairs["max_seq"].to_numpy(), kind="stable")
    ordered_pairs, p = pairs.iloc[order], np.asarray(p_chosen, dtype=np.float64)[order]
    n_votes = ordered_pairs["n_votes"].to_numpy(dtype=np.int64)
    n_for = (ordered_pairs["agreement"].to_numpy(dtype=np.float64) * n_votes).round()
    pair_of_vote = np.repeat(np.arange(len(ordered_pairs)), n_votes)
    nth = np.arange(len(pair_of_vote)) - np.repeat(np.cumsum(n_votes) - n_votes, n_votes)
    # Chosen comes first in every pair: if it was b, p and the votes are swapped.
    turned, for_chosen = (ordered_pairs["chosen_side"] == "b").to_numpy(), nth < n_for[pair_of_vote]
    return pd.DataFrame(
        {
            "p": np.where(turned, 1 - p, p)[pair_of_vote],
            "outcome": (for_chosen != turned[pair_of_vote]).astype(np.float64),
            "group": ordered_pairs["prompt_id"].to_numpy()[pair_of_vote],
        }
    )


def _vote_rows(
    pairs: pd.DataFrame,
    reward_model: RewardModel,
    params: CalibrationParams,
    changes: TasteChanges,
    progress: Progress,
) -> VoteRows:
    """Rows of the pairs of one split; pairs with only ties give none."""
    counting_pairs = pairs_that_count(pairs)
    margins = (
        margins_of(reward_model, counting_pairs, progress=progress)
        if len(counting_pairs)
        else np.zeros(0)
    )
    weights = change_weights(counting_pairs, changes, params.weight_before_change)
    votes, agreement = (
        counting_pairs[name].to_numpy(dtype=np.float64) for name in ("n_votes", "agreement")
    )
    return VoteRows.of_pairs(
        counting_pairs.assign(weight=weights), margins, votes * agreement, votes * (1 - agreement)
    )


def _measure(rows: VoteRows, p: Floats, params: CalibrationParams) -> CalibrationMetrics:
    return calibration_metrics(
        p,
        rows.outcomes,
        right=rows.right,
        weights=rows.weights,
        groups=rows.groups,
        n=rows.n_pairs,
        params=params,
    )


def _build_report(
    calibrator: Calibrator,
    test: VoteRows,
    params: CalibrationParams,
    votes: CalibrationContext,
    **more: object,
) -> CalibrationReport:
    def measure(p: Floats) -> dict[str, object]:
        return {
            "metrics": _measure(test, p, params),
            "bins": reliability_table(
                p, test.outcomes, weights=test.weights, groups=test.groups, params=params
            ),
        }

    p_raw, p_calibrated = (by.transform(test.margins) for by in (NoCalibration(), calibrator))
    raw, calibrated = measure(p_raw), measure(p_calibrated)
    by_group = calibration_by_group(
        PredictedVotes(
            p_calibrated,
            test.outcomes,
            test.comparison_ids,
            p_raw,
            test.weights,
            test.groups,
            test.right,
        ),
        votes.groups,
        ceilings=votes.group_ceilings,
        params=params,
    )
    return CalibrationReport.model_validate(
        {
            **more,
            "noise_ceiling": votes.noise_ceiling,
            "method": calibrator.name,
            "params": calibrator.to_json(),
            "raw": raw["metrics"],
            "calibrated": calibrated["metrics"],
            "raw_bins": raw["bins"],
            "calibrated_bins": calibrated["bins"],
            "by_group": by_group,
        }
    )

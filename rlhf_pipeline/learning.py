"""Fits and registers a reward model; calibrates it and decides which one serves."""

from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import pandas as pd

from rlhf_pipeline.calibration import CALIBRATORS, CalibrationParams, calibrate_version
from rlhf_pipeline.champions import AcceptanceParams, CalibrationOutcome, Champions, Judge
from rlhf_pipeline.drift.reference import reference_window
from rlhf_pipeline.protocols import Progress, ignore_progress
from rlhf_pipeline.records import Interval, ModelVersion
from rlhf_pipeline.registry import CANDIDATE, Run, opening_recorder
from rlhf_pipeline.reward_model import (
    FittedRewardModel,
    RewardModel,
    RewardModelParams,
    encoder_params,
    find_warm_start_obstacle,
    fit_reward_model,
)
from rlhf_pipeline.votes import NO_CHANGES, TasteChanges, noise_ceiling_or_repeats


class CalibrateParams(*CALIBRATORS.params(CalibrationParams, AcceptanceParams)):  # type: ignore[misc]
    """How a calibrator is chosen, and when its reward model is refused."""


@dataclass(frozen=True)
class LearningData:
    """Preference pairs, the votes that were cast when they were made, and changes of taste.

    `soft_labels` are what label annotators learns; none of all this rests on a vote after
    `up_to_seq`.
    """

    pairs: pd.DataFrame
    votes: pd.DataFrame
    taste_changes: TasteChanges = NO_CHANGES
    soft_labels: pd.DataFrame | None = None
    up_to_seq: int | None = None

    @property
    def ceiling(self) -> Interval | None:
        return noise_ceiling_or_repeats(self.votes)

    @property
    def ceiling_since_change(self) -> Interval | None:
        """Of the votes since the latest change of taste."""
        if not self.taste_changes:
            return None
        since = self.votes["seq"] >= self.taste_changes.latest_seq
        return noise_ceiling_or_repeats(self.votes[since])


@dataclass(frozen=True)
class WarmStart:
    """The model whose weights a fit starts from, and its label; without one, why."""

    model: RewardModel | None = None
    label: str | None = None
    obstacle: str = ""

    @classmethod
    def from_champion(cls, champion: Judge | None, model: RewardModel) -> "WarmStart":
        """The champion where `model` can be fitted from it."""
        if champion is None:
            return cls()
        why = (
            f"it cannot be loaded ({champion.load_error})"
            if champion.load_error
            else find_warm_start_obstacle(champion.reward_model, model)
        )
        if why is None:
            return cls(champion.reward_model, champion.label)
        return cls(obstacle=f"fitted anew, not from {champion.label}: {why}")


def fit_model(
    champions: Champions,
    data: LearningData,
    params: RewardModelParams,
    model: RewardModel,
    start: WarmStart,
    *,
    progress: Progress = ignore_progress,
) -> FittedRewardModel:
    """`fit_reward_model` beside the noise ceilings; the opened test split is recorded."""
    return fit_reward_model(
        data.pairs,
        params,
        model=model,
        soft_labels=data.soft_labels,
        ceiling=data.ceiling,
        ceiling_since_change=data.ceiling_since_change,
        warm_start=start.model,
        taste_changes=data.taste_changes,
        up_to_seq=data.up_to_seq,
        record=opening_recorder(champions.registry),
        progress=progress,
    )


def register_fit(
    champions: Champions,
    data: LearningData,
    params: RewardModelParams,
    fitted: FittedRewardModel,
    parent: str | None,
    *,
    run: Run,
    folder: Path,
) -> ModelVersion:
    """Save the model into `folder` and register it as candidate, with its lineage."""
    report, changes = fitted.report, data.taste_changes
    fitted.model.save(folder)
    described: dict[str, Any] = params.to_report() | encoder_params(fitted.model)
    described["weight_before_change"] = report.weight_before_change
    if changes:
        described["taste_changes"] = changes.to_json()
    version = champions.registry.register(
        "reward_model",
        folder,
        run=run,
        metrics=report.metrics(),
        params=described,
        parent=parent,
        data_hash=report.data_hash,
        data_seq=report.max_seq,
    )
    champions.registry.set_alias("reward_model", CANDIDATE, version.version)
    return version


def calibrate_model(
    champions: Champions,
    version: ModelVersion,
    data: LearningData,
    comparisons: pd.DataFrame,
    params: CalibrateParams,
    *,
    weight_before_change: float | None = None,
    promote: bool = True,
    progress: Progress = ignore_progress,
) -> CalibrationOutcome:
    """Calibrate `version` and decide whether it serves; the caller promotes it where it
    `takes_over`.

    COMPARISONS are those the votes judge. The predictions that drift is measured from are frozen
    with the first calibration that may serve. Raises as `calibrate_version`.
    """
    judge = champions.judge(version)
    assert judge is not None  # a version was given
    calibrator, report = calibrate_version(
        version,
        judge.reward_model,
        data.pairs,
        data.votes,
        comparisons,
        params,
        weight_before_change=weight_before_change,
        taste_changes=data.taste_changes,
        record=opening_recorder(champions.registry),
        progress=progress,
    )
    calib = data.pairs[data.pairs["split"] == "calib"]
    outcome = champions.record_calibration(
        version,
        judge.reward_model,
        calibrator,
        report,
        calib,
        taste_changes=data.taste_changes,
        acceptance=params,
        promote=promote,
        progress=progress,
    )
    # Without candidates too few pairs were there to calibrate by, and so to measure drift from.
    has_predictions = outcome.report.candidates and outcome.report.may_serve
    if has_predictions and champions.reference_window(version.label) is None:
        window = reference_window(
            calib,
            outcome.judge.p_chosen(calib, progress=progress),
            model_version=version.label,
            embed=partial(outcome.judge.embed, progress=progress),
            taste_changes=data.taste_changes,
        )
        champions.save_reference_window(version, window)
    return outcome

"""Measures reward-model versions on the same held-out votes."""

import logging
from collections.abc import Iterator

import pandas as pd

from rlhf_pipeline.core.errors import PipelineError
from rlhf_pipeline.core.protocols import Progress, ignore_progress
from rlhf_pipeline.core.records import CalibrationMetrics
from rlhf_pipeline.learn.calibration import CalibrationParams, measure_pairs, pairs_that_count
from rlhf_pipeline.learn.calibration.group_calibration import MIN_PAIRS
from rlhf_pipeline.learn.calibration.identity import NoCalibration
from rlhf_pipeline.learn.champions.calibrated_model import CalibratedModel
from rlhf_pipeline.learn.champions.champions import Champions

MOST_VERSIONS = 10  # each is loaded and scores every pair
logger = logging.getLogger(__name__)


def measure_versions(
    champions: Champions,
    current: CalibratedModel,
    pairs: pd.DataFrame,
    params: CalibrationParams,
    *,
    progress: Progress = ignore_progress,
) -> dict[str, CalibrationMetrics]:
    """Accuracy and calibration of `current` and of the versions promoted last, by label, newest
    first: all on the votes of the same PREFERENCE_PAIRS, which none of them was fitted to. With the
    `params` of its calibration, `current` has the figures of that report.

    Empty below MIN_PAIRS pairs that count. An earlier version that cannot be loaded or cannot score
    is left out, and logged.
    """
    if len(pairs_that_count(pairs)) < MIN_PAIRS:
        return {}
    metrics = {}
    for judge in (current, *_load_promoted(champions, current.label)):
        try:
            calibrator = judge.calibrator or NoCalibration()
            metrics[judge.label] = measure_pairs(
                pairs, judge.reward_model, calibrator, params, progress=progress
            )
        except PipelineError as cause:
            if judge is current:
                raise
            logger.warning("%s is not compared with the others: %s", judge.label, cause)
    return metrics


def _load_promoted(champions: Champions, but: str) -> Iterator[CalibratedModel]:
    registry = champions.registry
    history = champions.store.promotions.history(registry.model_name("reward_model"))
    numbers = dict.fromkeys(
        promotion.version for promotion in reversed(history) if promotion.label != but
    )
    for number in list(numbers)[: MOST_VERSIONS - 1]:
        try:
            version = registry.get("reward_model", number)
            judge = None if version is None else champions.judge(version)
        except PipelineError as cause:  # removed by retention, or of a missing encoder
            logger.warning("reward model %s is not compared with the others: %s", number, cause)
            continue
        if judge is not None:
            yield judge

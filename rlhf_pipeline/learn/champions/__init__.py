"""Loads the champions, and decides which models may replace them."""

from rlhf_pipeline.learn.champions.assessment import (
    AcceptanceParams,
    Assessment,
    ChanceTest,
    assess,
    compare_with_champion,
    compare_with_chance,
)
from rlhf_pipeline.learn.champions.calibrated_model import CalibratedModel, Question
from rlhf_pipeline.learn.champions.champions import CalibrationOutcome, Champions, Release

__all__ = [
    "AcceptanceParams",
    "Assessment",
    "CalibratedModel",
    "CalibrationOutcome",
    "Champions",
    "ChanceTest",
    "Question",
    "Release",
    "assess",
    "compare_with_champion",
    "compare_with_chance",
]

"""Loads the champions, and decides which models may replace them."""

from rlhf_pipeline.learn.champions.assessment import (
    AcceptanceParams,
    Assessment,
    ChanceTest,
    assess,
    compare_with_champion,
    compare_with_chance,
)
from rlhf_pipeline.learn.champions.champions import CalibrationOutcome, Champions
from rlhf_pipeline.learn.champions.judge import Judge, PairPrediction, Question

__all__ = [
    "AcceptanceParams",
    "Assessment",
    "CalibrationOutcome",
    "Champions",
    "ChanceTest",
    "Judge",
    "PairPrediction",
    "Question",
    "assess",
    "compare_with_champion",
    "compare_with_chance",
]

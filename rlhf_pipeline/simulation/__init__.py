"""Simulates worlds with known truth, for running and testing the loop."""

from rlhf_pipeline.simulation.annotators import AnnotatorPool, SimulatedAnnotator, simulate_votes
from rlhf_pipeline.simulation.rubric import RUBRIC, judge_rubric
from rlhf_pipeline.simulation.scenarios import (
    DEMO_SCENARIO,
    SOURCED_TASTE,
    WARM_TASTE,
    Scenario,
    taste_change,
)
from rlhf_pipeline.simulation.utilities import (
    QUALITIES,
    Taste,
    features,
    side_utilities,
    utility,
    utility_gaps,
)

__all__ = [
    "DEMO_SCENARIO",
    "QUALITIES",
    "RUBRIC",
    "SOURCED_TASTE",
    "WARM_TASTE",
    "AnnotatorPool",
    "Scenario",
    "SimulatedAnnotator",
    "Taste",
    "features",
    "judge_rubric",
    "side_utilities",
    "simulate_votes",
    "taste_change",
    "utility",
    "utility_gaps",
]

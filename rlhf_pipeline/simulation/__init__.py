"""Simulates worlds with known truth, for running and testing the loop."""

from rlhf_pipeline.simulation.annotators import AnnotatorPool, SimulatedAnnotator, cast_votes
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
    "cast_votes",
    "features",
    "judge_rubric",
    "side_utilities",
    "taste_change",
    "utility",
    "utility_gaps",
]

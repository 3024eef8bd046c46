"""Worlds whose truth is known, to run and to test the loop on. Knows the stages; no stage knows
it.
"""

from rlhf_pipeline.simulation.annotators import AnnotatorPool, SimulatedAnnotator, cast_votes
from rlhf_pipeline.simulation.recovery import Ceiling, Recovered, recover_pool, true_ceiling
from rlhf_pipeline.simulation.scenarios import (
    SCENARIOS,
    SOURCED_TASTE,
    WARM_TASTE,
    Scenario,
    scenario_named,
    taste_change,
)
from rlhf_pipeline.simulation.truth import QUALITIES, Taste, features, side_utilities, utility

__all__ = [
    "QUALITIES",
    "SCENARIOS",
    "SOURCED_TASTE",
    "WARM_TASTE",
    "AnnotatorPool",
    "Ceiling",
    "Recovered",
    "Scenario",
    "SimulatedAnnotator",
    "Taste",
    "cast_votes",
    "features",
    "recover_pool",
    "scenario_named",
    "side_utilities",
    "taste_change",
    "true_ceiling",
    "utility",
]

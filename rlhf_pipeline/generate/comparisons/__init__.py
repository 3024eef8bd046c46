"""Chooses which two completions are compared, how they are displayed, and who or what judges
them.
"""

from rlhf_pipeline.generate.comparisons.pairing import PairingParams, pair_completions
from rlhf_pipeline.generate.comparisons.routing import RoutingParams

__all__ = ["PairingParams", "RoutingParams", "pair_completions"]

"""Which two completions are compared, how they are shown, and who judges them."""

from rlhf_pipeline.comparisons.pairing import PairingParams, pair_completions
from rlhf_pipeline.comparisons.routing import RoutingParams

__all__ = ["PairingParams", "RoutingParams", "pair_completions"]

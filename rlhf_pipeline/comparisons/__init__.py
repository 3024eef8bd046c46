"""Which two completions are judged against each other, shown how, and by whom. Knows completions
and predictions; knows no votes.
"""

from rlhf_pipeline.comparisons.pairing import PairingParams, pair_completions
from rlhf_pipeline.comparisons.routing import RoutingParams

__all__ = ["PairingParams", "RoutingParams", "pair_completions"]

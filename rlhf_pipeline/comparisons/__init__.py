"""Which two completions are judged against each other, shown how. Knows completions; knows no votes."""

from rlhf_pipeline.comparisons.pairing import PairingParams, pair_completions

__all__ = ["PairingParams", "pair_completions"]

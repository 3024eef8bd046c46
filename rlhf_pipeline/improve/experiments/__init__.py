"""Experiments on served versions: who answers a session, how the arms compare, and what follows."""

from rlhf_pipeline.improve.experiments.analysis import Analysis
from rlhf_pipeline.improve.experiments.experiments import Experiments
from rlhf_pipeline.improve.experiments.preferences import assign, offer_pair, wants_pair

__all__ = ["Analysis", "Experiments", "assign", "offer_pair", "wants_pair"]

"""Generates completions with a language model: the embedded policy, or any causal LM."""

from rlhf_pipeline.policy.causal_lm import GeneratedText, Policy, load_policy
from rlhf_pipeline.policy.pretraining import PretrainingParams, pretrain

__all__ = ["GeneratedText", "Policy", "PretrainingParams", "load_policy", "pretrain"]

"""Generates completions with a language model: the embedded policy, or any causal LM."""

from pathlib import Path

from rlhf_pipeline.generate.policy.causal_lm import GeneratedText, Policy, load_policy

# A small Llama that examples/embedded_policy.py trained, as a transformers folder with the report
# of its training.
EMBEDDED_POLICY = Path(__file__).with_name("embedded")

__all__ = ["EMBEDDED_POLICY", "GeneratedText", "Policy", "load_policy"]

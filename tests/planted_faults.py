"""Policies that differ from the embedded one by one fault of serving."""

from collections.abc import Callable

import torch

from rlhf_pipeline.generate.policy import EMBEDDED_POLICY, load_policy
from rlhf_pipeline.generate.policy.causal_lm import Policy

RANK = 4


def load() -> Policy:
    return load_policy(EMBEDDED_POLICY)


def apply_adapter(policy: Policy, scale: float = 0.03, seed: int = 0) -> None:
    """Add a random LoRA adapter to the query projections."""
    rng = torch.Generator().manual_seed(seed)
    for name, module in policy.model.named_modules():
        if name.endswith("q_proj"):
            out, into = module.weight.shape
            up, down = torch.randn(out, RANK, generator=rng), torch.randn(RANK, into, generator=rng)
            module.weight.data += scale**2 * up @ down * RANK


def quantise(policy: Policy) -> None:
    """Round the weights of linear layers to int8, with a scale a row."""
    for module in policy.model.modules():
        if isinstance(module, torch.nn.Linear):
            scale = module.weight.data.abs().amax(1, keepdim=True) / 127
            module.weight.data = (module.weight.data / scale).round() * scale


def change_template(policy: Policy) -> None:
    policy.tokenizer.chat_template = policy.tokenizer.chat_template.replace(
        "<|user|>", "<|user|>\\n"
    )


def change_end(policy: Policy) -> None:
    policy.model.generation_config.eos_token_id = 5


def forget_turns(policy: Policy) -> None:
    policy.tokenizer.chat_template = policy.tokenizer.chat_template.replace(
        "in messages", "in messages[-1:]"
    )


def shorten_context(policy: Policy) -> None:
    policy.config.max_position_embeddings = 128


FAULTS: dict[str, tuple[Callable[[Policy], None], str]] = {
    "other adapter": (apply_adapter, "other weights"),
    "int8 weights": (quantise, "the median difference"),
    "other template": (change_template, "other chat template"),
    "wrong eos": (change_end, "other end token"),
    "forgotten turns": (forget_turns, "truncated context"),
    "shorter context": (shorten_context, "truncated context"),
}


def plant(fault: str) -> Policy:
    policy = load()
    FAULTS[fault][0](policy)
    return policy

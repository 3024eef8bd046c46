"""Defines the parameters of the transformer reward model."""

from pydantic import ConfigDict, Field

from rlhf_pipeline.reward_model.losses import LabelParams
from rlhf_pipeline.reward_model.network import NetworkParams
from rlhf_pipeline.reward_model.trainers.base import TrainerParams


# The order of the bases is the order of the fields in config.json, which hashes cover.
class TransformerParams(TrainerParams, NetworkParams, LabelParams):
    """Parameters of a transformer reward model's fit."""

    model_config = ConfigDict(extra="forbid", allow_inf_nan=False)

    max_tokens: int = Field(
        default=256,
        ge=8,
        le=131_072,
        description="Tokens of prompt and completion together; what is longer is cut",
    )
    prompt_chars: int = Field(
        default=600,
        ge=0,
        le=10_000,
        description="Characters kept of the end of the prompt, before the completion",
    )
    n_members: int = Field(
        default=1,
        ge=1,
        le=32,
        description="Models fitted with seeds seed, seed + 1, …; a score is their mean",
    )
    min_pairs: int = Field(default=30, ge=4, description="Fewest pairs to fit on")

"""Learns scores of completions from preference pairs."""

from rlhf_pipeline.learn.reward_model.base import (
    RewardModel,
    disagreement,
    encoder_params,
    find_warm_start_obstacle,
    preference_probability,
)
from rlhf_pipeline.learn.reward_model.embedding import EmbeddingParams, EmbeddingRewardModel
from rlhf_pipeline.learn.reward_model.embedding_cache import EmbeddingCache
from rlhf_pipeline.learn.reward_model.encoder import Encoder
from rlhf_pipeline.learn.reward_model.kinds import (
    PRESETS,
    REWARD_MODELS,
    RewardModelParams,
    build_reward_model,
    launchpad_class,
    load_reward_model,
    params_class,
    reward_model_params,
)
from rlhf_pipeline.learn.reward_model.report import RewardModelReport, TestAccuracy
from rlhf_pipeline.learn.reward_model.training import (
    FittedRewardModel,
    LearningData,
    fit_reward_model,
)
from rlhf_pipeline.learn.reward_model.transformer import TransformerParams, TransformerRewardModel

__all__ = [
    "PRESETS",
    "REWARD_MODELS",
    "EmbeddingCache",
    "EmbeddingParams",
    "EmbeddingRewardModel",
    "Encoder",
    "FittedRewardModel",
    "LearningData",
    "RewardModel",
    "RewardModelParams",
    "RewardModelReport",
    "TestAccuracy",
    "TransformerParams",
    "TransformerRewardModel",
    "build_reward_model",
    "disagreement",
    "encoder_params",
    "find_warm_start_obstacle",
    "fit_reward_model",
    "launchpad_class",
    "load_reward_model",
    "params_class",
    "preference_probability",
    "reward_model_params",
]

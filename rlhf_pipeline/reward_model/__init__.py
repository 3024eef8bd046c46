"""Scores of completions learnt from preference pairs. Knows pairs and texts; knows no votes,
registry or schedule.
"""

from pathlib import Path

from rlhf_pipeline.errors import ModelError
from rlhf_pipeline.plugins import Members
from rlhf_pipeline.reward_model.acceptance import AcceptanceParams
from rlhf_pipeline.reward_model.base import (
    RewardModel,
    disagreement,
    preference_probability,
    read_config,
)
from rlhf_pipeline.reward_model.embedding import EmbeddingParams, EmbeddingRewardModel
from rlhf_pipeline.reward_model.embedding_cache import EmbeddingCache
from rlhf_pipeline.reward_model.encoder import Encoder
from rlhf_pipeline.reward_model.group_accuracy import accuracy_by_group
from rlhf_pipeline.reward_model.params import RewardModelParams
from rlhf_pipeline.reward_model.report import RewardModelReport, TestAccuracy
from rlhf_pipeline.reward_model.training import (
    FittedRewardModel,
    build_reward_model,
    encoder_params,
    find_warm_start_obstacle,
    fit_reward_model,
)
from rlhf_pipeline.reward_model.transformer import TransformerRewardModel
from rlhf_pipeline.reward_model.transformer_params import FineTuningParams, TransformerParams

_OWN: dict[str, type[RewardModel]] = {
    EmbeddingRewardModel.name: EmbeddingRewardModel,
    TransformerRewardModel.name: TransformerRewardModel,
}
REWARD_MODELS = Members("reward_model", _OWN)


def load_reward_model(folder: Path, *, encoder: Encoder | None = None) -> RewardModel:
    """The reward model in `folder`, whatever kind its config.json names.

    Raises ModelNotFound without a complete folder, ModelError for an unknown kind or a file that
    lacks a part, ModelHashMismatch where `encoder` is not the one the model was fitted on.
    """
    kind = read_config(folder)["kind"]
    if kind not in REWARD_MODELS:
        raise ModelError(
            f"{folder} holds a reward model of kind {kind!r}. Known: {', '.join(REWARD_MODELS)}."
        )
    return REWARD_MODELS[kind].load(folder, encoder=encoder)


__all__ = [
    "REWARD_MODELS",
    "AcceptanceParams",
    "EmbeddingCache",
    "EmbeddingParams",
    "EmbeddingRewardModel",
    "Encoder",
    "FineTuningParams",
    "FittedRewardModel",
    "RewardModel",
    "RewardModelParams",
    "RewardModelReport",
    "TestAccuracy",
    "TransformerParams",
    "TransformerRewardModel",
    "accuracy_by_group",
    "build_reward_model",
    "disagreement",
    "encoder_params",
    "find_warm_start_obstacle",
    "fit_reward_model",
    "load_reward_model",
    "preference_probability",
]

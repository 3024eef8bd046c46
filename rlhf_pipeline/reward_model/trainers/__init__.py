"""Learns the weights of a transformer reward model from pairs, with one of several trainers."""

from rlhf_pipeline.reward_model.trainers.base import (
    OptimisationParams,
    Trainer,
    TrainerParams,
    TrainingContext,
    TrainingData,
    TrainingRecord,
)
from rlhf_pipeline.reward_model.trainers.shared_text import train_on_shared_texts
from rlhf_pipeline.reward_model.trainers.trl import train_with_trl

TRAINERS: dict[str, Trainer] = {"shared_text": train_on_shared_texts, "trl": train_with_trl}

__all__ = [
    "TRAINERS",
    "OptimisationParams",
    "Trainer",
    "TrainerParams",
    "TrainingContext",
    "TrainingData",
    "TrainingRecord",
    "train_on_shared_texts",
    "train_with_trl",
]

"""Fits the embedding kind's head on the untrained backbone, as one member of a fine-tuned model."""

from pathlib import Path

import pandas as pd

from rlhf_pipeline.errors import NotEnoughData
from rlhf_pipeline.protocols import Progress
from rlhf_pipeline.reward_model.base import Floats
from rlhf_pipeline.reward_model.embedding import EmbeddingParams, EmbeddingRewardModel
from rlhf_pipeline.reward_model.encoder import Encoder
from rlhf_pipeline.reward_model.transformer_params import TransformerParams

FROZEN_FOLDER = "frozen_head"  # in the model's folder: a complete embedding model
SHARED_PARAMS = {*EmbeddingParams.model_fields} & {*TransformerParams.model_fields} - {"n_members"}


def fit_frozen_head(
    pairs: pd.DataFrame,
    params: TransformerParams,
    encoder: Encoder,
    max_tokens: int,
    *,
    weights: Floats,
    progress: Progress,
) -> EmbeddingRewardModel:
    """Fit a head on `encoder` with a window of `max_tokens`, with the label and the loss of
    `params`.

    It learns the votes without `smoothing` and `ties_as_halves`. Raises NotEnoughData if there is
    only one prompt, or if all votes are ties.
    """
    own = EmbeddingParams(**params.model_dump(include=SHARED_PARAMS))
    # A separate encoder, so its truncated texts are counted in addition to the networks'.
    of_its_own = Encoder(encoder.choice, encoder.cache, max_tokens=max_tokens)
    try:
        return EmbeddingRewardModel(own, of_its_own).fit(pairs, weights=weights, progress=progress)
    except NotEnoughData as cause:
        raise NotEnoughData(
            f"The frozen head cannot be fitted: {cause} Or leave frozen_head out."
        ) from cause


def load_frozen_head(folder: Path, encoder: Encoder, max_tokens: int) -> EmbeddingRewardModel:
    """Load the head from the model's `folder`. Raises as `EmbeddingRewardModel.load`."""
    if encoder.max_tokens != max_tokens:
        encoder = Encoder(encoder.choice, encoder.cache, max_tokens=max_tokens)
    return EmbeddingRewardModel.load(folder / FROZEN_FOLDER, encoder=encoder)

"""Finds the encoder of the settings, once per process."""

from functools import lru_cache
from pathlib import Path

from rlhf_pipeline.learn.reward_model import EmbeddingCache, Encoder
from rlhf_pipeline.learn.reward_model.encoder import EncoderChoice

# by setting: the encoders available at the first look-up
_FOUND: dict[str | Path | None, EncoderChoice] = {}


def find_encoder(setting: str | Path | None, cache: Path) -> Encoder:
    """The first available encoder of the setting, with its embeddings below `cache`; a fallback is
    looked up each time, since the encoder it replaces may be back. Raises EncoderNotFound.
    """
    choice = _FOUND.get(setting) or EncoderChoice.of(setting)
    if choice.instead is None:
        _FOUND[setting] = choice
    return _load_encoder(choice, cache)


@lru_cache(maxsize=3)
def _load_encoder(choice: EncoderChoice, cache: Path) -> Encoder:
    """Load the encoder once per process, because loading takes seconds."""
    return Encoder(choice, EmbeddingCache(cache))

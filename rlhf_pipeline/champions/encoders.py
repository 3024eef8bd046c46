"""Finds the encoders in the settings, and the one that a stored reward model was fitted on."""

from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import lru_cache
from pathlib import Path

from rlhf_pipeline.errors import EncoderNotFound, ModelHashMismatch
from rlhf_pipeline.reward_model import EmbeddingCache, Encoder, RewardModel, load_reward_model
from rlhf_pipeline.reward_model.encoder import EncoderChoice


@dataclass(frozen=True)
class Encoders:
    """The encoders in the setting `encoder`, in its order; `cache` holds their embeddings."""

    setting: str | Path | None
    cache: Path

    def first(self) -> Encoder:
        """Return the first available encoder. Raises EncoderNotFound."""
        return _find_encoder(self.setting, self.cache)

    def of_start(self, start: RewardModel) -> Encoder:
        """Return the encoder that `start` was fitted on, for a fit from its weights.

        Raises EncoderNotFound if that may be one that is currently missing, ModelHashMismatch if
        the setting does not name it.
        """
        first, before = self.first(), start.encoder
        if before is None:
            return first
        tried: list[str] = []
        missing: list[str] = []
        for one in self._available(first, missing):
            if one.hash_with(before.max_tokens) == before.hash:
                if one is first:
                    return one
                return _load_encoder(_mark_continuation(one.choice, first.choice), self.cache)
            tried.append(one.choice.used)
        problem = (
            f"The model to start from was fitted on encoder {before.hash[:12]}, not on "
            f"{' or '.join(tried)}"
        )
        if missing:
            raise EncoderNotFound(
                f"{problem}; it may be one that is missing: {'; '.join(missing)}",
                "Go on once that one is there again, or fit anew.",
            )
        raise ModelHashMismatch(
            f"{problem}. Name it in the setting `encoder`, after a comma where it is not the "
            "first, or fit anew."
        )

    def load_model(self, folder: Path, label: str, first: Encoder | None = None) -> RewardModel:
        """Load the reward model in `folder`, called `label`, on the encoder it was fitted on;
        passing `first` saves a second look-up.

        Raises as `load_reward_model`, and EncoderNotFound if that encoder may be one that is
        currently missing.
        """
        tried: list[str] = []
        missing: list[str] = []
        mismatch: ModelHashMismatch | None = None
        for one in self._available(first or self.first(), missing):
            try:
                return load_reward_model(folder, encoder=one)
            except ModelHashMismatch as cause:
                mismatch = mismatch or cause
                tried.append(one.choice.used)
        assert mismatch is not None  # `first` was tried
        if not missing:
            raise mismatch
        raise EncoderNotFound(
            f"{label} does not load on the encoder {' or '.join(tried)}, and the one it was fitted "
            f"on may be missing: {'; '.join(missing)}",
            "Go on once that one is there again, or take its name out of the setting `encoder`: "
            "the next fit then starts anew.",
        ) from mismatch

    def _available(self, first: Encoder, missing: list[str]) -> Iterator[Encoder]:
        """Yield `first` and the encoders listed after it; append the reasons for unavailable ones
        to `missing`.
        """
        if first.choice.instead is not None:
            missing.append(first.choice.instead)
        yield first
        for name in first.choice.rest:
            try:
                yield _find_encoder(name, self.cache)
            except EncoderNotFound as absent:
                missing.append(absent.why)
            except ModelHashMismatch as damaged:
                missing.append(str(damaged))


# by setting: the encoders available at the first look-up
_FOUND: dict[str | Path | None, EncoderChoice] = {}


def _find_encoder(name: str | Path | None, cache: Path) -> Encoder:
    """Return the encoder `name`, looked up once per process; a fallback is looked up each time,
    since the encoder it replaces may be back.
    """
    choice = _FOUND.get(name) or EncoderChoice.of(name)
    if choice.instead is None:
        _FOUND[name] = choice
    return _load_encoder(choice, cache)


def _mark_continuation(choice: EncoderChoice, asked: EncoderChoice) -> EncoderChoice:
    """`choice` as recorded for a fit that continues on it although `asked` is available."""
    return replace(
        choice, asked=asked.asked, instead="the model that the fit starts from was fitted on it"
    )


@lru_cache(maxsize=3)
def _load_encoder(choice: EncoderChoice, cache: Path) -> Encoder:
    """Load the encoder once per process, because loading takes seconds."""
    return Encoder(choice, EmbeddingCache(cache))

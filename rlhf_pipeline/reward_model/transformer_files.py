"""The files of a fine-tuned model's folder: the backbone's configuration and tokenizer, and each
member's weights. Knows files; fits nothing.
"""

import hashlib
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from rlhf_pipeline.errors import ModelError
from rlhf_pipeline.records import content_hash
from rlhf_pipeline.reward_model.base import require_finite

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
# What a member's file holds beside its weights; without either it is refused.
SCALE = ("score_mean", "score_std")


class SavedEncoder:
    """What is left of an encoder in a saved model: its hash, tokenizer and configuration."""

    source: None = None
    choice: None = None

    def __init__(self, folder: Path, config: Mapping[str, Any]) -> None:
        self.folder = folder
        self.hash = config["encoder_hash"]
        self.max_tokens = config["params"]["max_tokens"]
        self.n_truncated = 0


def member_file(i: int) -> str:
    """Where the weights of the i-th member lie, in the model's folder."""
    return f"member-{i}.safetensors"


def read_backbone_files(folder: Path) -> dict[str, bytes]:
    """Configuration and tokenizer of a backbone, by name; not its weights."""
    return {
        name: (folder / name).read_bytes() for name in BACKBONE_FILES if (folder / name).is_file()
    }


def files_hash(files: Mapping[str, bytes]) -> str:
    """Of names and contents."""
    return content_hash(
        {name: hashlib.sha256(content).hexdigest() for name, content in files.items()}
    )


def read_member(path: Path) -> dict[str, Any]:
    """Weights and scale of one member. Raises ModelError for a file that cannot be read or lacks
    its scale, InvalidScores for a NaN in that.
    """
    from safetensors import SafetensorError
    from safetensors.torch import load_file

    try:
        parts: dict[str, Any] = load_file(path)
    except (SafetensorError, OSError) as cause:
        raise ModelError(
            f"{path} cannot be read ({cause}). Fetch the model version from the registry again."
        ) from cause
    missing = [name for name in SCALE if name not in parts]
    if missing:
        raise ModelError(
            f"{path} lacks {', '.join(missing)}. Scores without their normalisation are wrong, so "
            "it is refused. Fit it again."
        )
    require_finite([float(parts[name]) for name in SCALE], "normalisation numbers")
    return parts

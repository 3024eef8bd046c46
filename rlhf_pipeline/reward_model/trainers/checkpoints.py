"""Stores a training's state on disk, completely or not at all.

One safetensors file holds weights, AdamW's moments, torch's random state and, in its header, the
step and the counts so far. The schedule and the place in the data follow from the step. The file
name contains the content's hash, so a damaged file is skipped.
"""

import hashlib
import json
import os
import re
import shutil
import uuid
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rlhf_pipeline.files import translate_write_errors, write_atomically
from rlhf_pipeline.reward_model.model_files import refuse_foreign_files

NAME = re.compile(r"^step-(\d{9})-([0-9a-f]{16})\.safetensors$")
FINGERPRINT_FILE = "fingerprint.txt"
OWN_FILES = re.compile(rf"{NAME.pattern}|^{re.escape(FINGERPRINT_FILE)}$|^\..+\.tmp$")
N_KEPT = 2  # the newest, and the previous one in case that is damaged
MODEL = "model:"
MOMENTS = "optimizer:"
RANDOM = "torch_random_state"


@dataclass(frozen=True)
class ResumedState:
    """Contents of a checkpoint besides the weights, which are back in the network; `counted` is as
    passed to `save_checkpoint`.
    """

    step: int
    counted: dict[str, Any]


def open_checkpoints(folder: Path, fingerprint: str) -> None:
    """Create `folder`, or empty it unless its checkpoints belong to the same training: the same
    initial weights, data and parameters.

    Raises ConfigurationError if it holds other files, which would be lost.
    """
    refuse_foreign_files(folder, OWN_FILES, "the checkpoints of a training")
    label = folder / FINGERPRINT_FILE
    if folder.exists() and (not label.exists() or label.read_text(encoding="utf-8") != fingerprint):
        shutil.rmtree(folder)
    write_atomically(label, fingerprint.encode())


def save_checkpoint(
    folder: Path, step: int, network: Any, optimizer: Any, counted: dict[str, Any]
) -> None:
    """Write the state after `step` steps and delete all but the newest two. Raises ArtefactError if
    the disk refuses.
    """
    import torch
    from safetensors.torch import save_file

    tensors = {
        f"{MODEL}{name}": part.detach().contiguous().cpu()
        for name, part in network.named_parameters()
        if part.requires_grad
    }
    for index, state in optimizer.state_dict()["state"].items():
        tensors |= {
            f"{MOMENTS}{index}:{name}": torch.as_tensor(part).cpu() for name, part in state.items()
        }
    tensors[RANDOM] = torch.get_rng_state()
    temporary = folder / f".{uuid.uuid4().hex}.tmp"
    with translate_write_errors(folder):
        # Another process finished the same training and removed the folder.
        folder.mkdir(parents=True, exist_ok=True)
        try:
            save_file(
                tensors, temporary, metadata={"step": str(step), "counted": json.dumps(counted)}
            )
            with temporary.open("rb") as file:
                digest = hashlib.file_digest(file, "sha256").hexdigest()[:16]
                os.fsync(file.fileno())
            os.replace(temporary, folder / f"step-{step:09d}-{digest}.safetensors")
        finally:
            with suppress(OSError):
                temporary.unlink()
        for old in _newest_first(folder)[N_KEPT:]:
            old.unlink()


def resume(folder: Path, network: Any, optimizer: Any) -> ResumedState | None:
    """Load the newest complete checkpoint into the network, the optimiser and torch's random state;
    None if there is none.
    """
    import torch
    from safetensors import safe_open

    for path in _newest_first(folder):
        with path.open("rb") as file:
            found = hashlib.file_digest(file, "sha256").hexdigest()[:16]
            if found != NAME.match(path.name)[2]:  # type: ignore[index]
                continue
        with safe_open(path, framework="pt") as stored:
            header = stored.metadata()
            # safe_open is not a mapping
            tensors = {name: stored.get_tensor(name) for name in stored.keys()}  # noqa: SIM118
        with torch.no_grad():
            for name, part in network.named_parameters():
                if part.requires_grad:
                    part.copy_(tensors[f"{MODEL}{name}"])
        moments: dict[int, dict[str, Any]] = {}
        for name, tensor in tensors.items():
            if name.startswith(MOMENTS):
                index, of = name.removeprefix(MOMENTS).split(":")
                moments.setdefault(int(index), {})[of] = tensor
        optimizer.load_state_dict(
            {"state": moments, "param_groups": optimizer.state_dict()["param_groups"]}
        )
        torch.set_rng_state(tensors[RANDOM])
        return ResumedState(int(header["step"]), json.loads(header["counted"]))
    return None


def _newest_first(folder: Path) -> list[Path]:
    return sorted(
        (path for path in folder.iterdir() if NAME.match(path.name)),
        key=lambda path: path.name,
        reverse=True,
    )

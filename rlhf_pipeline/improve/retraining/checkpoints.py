"""Finds the checkpoints from which a training can continue."""

import json
import re
import shutil
from dataclasses import dataclass
from pathlib import Path

from rlhf_pipeline.core.files import translate_write_errors, write_atomically

FINGERPRINT = "fingerprint.txt"
NAME = re.compile(r"^checkpoint-(\d+)$")


@dataclass(frozen=True)
class Checkpoint:
    """A complete checkpoint after `step` optimiser steps; `seconds` is the training time up to it,
    over all attempts.
    """

    folder: Path
    step: int
    seconds: float


def open_checkpoints(folder: Path, fingerprint: str) -> Path:
    """Return `folder`, emptied first unless its checkpoints belong to the same training
    (`fingerprint`: policy, pairs, parameters). Raises ArtefactError if the disk refuses.
    """
    label = folder / FINGERPRINT
    with translate_write_errors(folder):
        is_other = not label.exists() or label.read_text(encoding="utf-8") != fingerprint
        if folder.exists() and is_other:
            shutil.rmtree(folder)
        folder.mkdir(parents=True, exist_ok=True)
    write_atomically(label, fingerprint.encode())
    return folder


def mark_complete(checkpoint: Path, seconds: float) -> None:
    """Mark `checkpoint` as complete after its last file is written; a kill leaves a checkpoint
    without the mark.
    """
    mark = {"sizes": _list_sizes(checkpoint), "seconds": seconds}
    write_atomically(_marker_path(checkpoint), json.dumps(mark).encode())


def find_last_complete(folder: Path) -> Checkpoint | None:
    """The newest checkpoint whose files are as long as its mark says; None to start from the
    beginning. Their contents are not read: a training that goes on from them does that.
    """
    checkpoints = [
        (int(match[1]), path)
        for path in folder.iterdir()
        if (match := NAME.match(path.name)) and path.is_dir()
    ]
    for step, path in sorted(checkpoints, reverse=True):
        mark = _read_mark(path)
        if mark is not None and mark[0] == _list_sizes(path):
            return Checkpoint(path, step, mark[1])
    return None


def replace_folder(source: Path, target: Path) -> None:
    """Move the finished `source` to `target`, replacing it; a kill at any point leaves one complete
    folder at `target` or beside it.
    """
    old = target.with_name(f"{target.name}.old")
    shutil.rmtree(old, ignore_errors=True)
    if target.exists():
        target.rename(old)
    source.rename(target)
    shutil.rmtree(old, ignore_errors=True)


def _marker_path(checkpoint: Path) -> Path:
    # Beside the folder, not in it: the mark lists everything inside.
    return checkpoint.with_name(f"{checkpoint.name}.complete.json")


def _list_sizes(checkpoint: Path) -> dict[str, int]:
    return {
        str(path.relative_to(checkpoint)): path.stat().st_size
        for path in checkpoint.rglob("*")
        if path.is_file()
    }


def _read_mark(checkpoint: Path) -> tuple[dict[str, int], float] | None:
    try:
        mark = json.loads(_marker_path(checkpoint).read_text(encoding="utf-8"))
        return dict(mark["sizes"]), float(mark["seconds"])
    except (OSError, ValueError, KeyError, TypeError):
        return None

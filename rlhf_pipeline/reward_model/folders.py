"""A model's folder, replaced whole or not at all. Knows the names of its files; knows nothing of
what is in them.
"""

import errno
import os
import re
import shutil
import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from rlhf_pipeline.errors import ConfigurationError
from rlhf_pipeline.files import translate_write_errors

REPLACED_SUFFIX = ".old"
MODEL_FILES = re.compile(
    r"^(config\.json|model\.safetensors|member-\d+\.safetensors|backbone|frozen_head|\..+\.tmp)$"
)


@contextmanager
def replace_folder_atomically(folder: Path) -> Iterator[Path]:
    """A new folder beside `folder`, which takes its place, and that of all it held, once the block
    ends without an error.

    What a model is depends on all files of its folder, so none of an older model may stay. Killed
    in the block, `folder` holds what it held; killed between the two renames at its end, that
    stands beside it as `.NAME.….old`. Raises ConfigurationError where `folder` holds something that
    is no model's, ArtefactError where the disk refuses.
    """
    target = Path(folder).resolve()
    with translate_write_errors(target):
        if target.exists() and not target.is_dir():
            raise NotADirectoryError(errno.ENOTDIR, os.strerror(errno.ENOTDIR))
    refuse_foreign_files(target, MODEL_FILES, "a reward model")
    made, old = (
        target.with_name(f".{target.name}.{uuid.uuid4().hex}{what}")
        for what in (".new", REPLACED_SUFFIX)
    )
    try:
        with translate_write_errors(target):
            made.mkdir(parents=True)
        yield made
        with translate_write_errors(target):
            _swap(made, target, old)
    finally:
        shutil.rmtree(made, ignore_errors=True)


def find_interrupted_folders(folder: Path) -> list[Path]:
    """What `folder` held, where a kill between two renames left it beside; newest last."""
    target = Path(folder).resolve()
    return sorted(
        target.parent.glob(f".{target.name}.*{REPLACED_SUFFIX}"),
        key=lambda path: path.stat().st_mtime,
    )


def refuse_foreign_files(folder: Path, own: re.Pattern[str], of: str) -> None:
    """Raise ConfigurationError where `folder` holds a name that `own` does not match: it is
    somebody's, and would be deleted.
    """
    foreign = (
        sorted(path.name for path in folder.iterdir() if not own.match(path.name))
        if folder.is_dir()
        else []
    )
    if foreign:
        raise ConfigurationError(
            f"{folder} holds {foreign[0]} and {len(foreign) - 1} more that are not of {of}; all in "
            "it would be replaced. Name a folder that is new or empty."
        )


def _swap(made: Path, target: Path, old: Path) -> None:
    if target.exists():
        target.rename(old)
    try:
        made.rename(target)
    except OSError:
        if old.exists():
            old.rename(target)
        raise
    shutil.rmtree(old, ignore_errors=True)

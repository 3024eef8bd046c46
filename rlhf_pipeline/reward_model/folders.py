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
from rlhf_pipeline.files import refusals_named

REPLACED = ".old"
MODEL_FILES = re.compile(
    r"^(config\.json|model\.safetensors|member-\d+\.safetensors|backbone|frozen_head|\..+\.tmp)$"
)


@contextmanager
def whole_folder(folder: Path) -> Iterator[Path]:
    """A new folder beside `folder`, which takes its place, and that of all it held, once the block
    ends without an error.

    What a model is depends on all files of its folder, so none of an older model may stay. Killed
    in the block, `folder` holds what it held; killed between the two renames at its end, that
    stands beside it as `.NAME.….old`. Raises ConfigurationError where `folder` holds something that
    is no model's, ArtefactError where the disk refuses.
    """
    target = Path(folder).resolve()
    with refusals_named(target):
        if target.exists() and not target.is_dir():
            raise NotADirectoryError(errno.ENOTDIR, os.strerror(errno.ENOTDIR))
    refuse_foreign(target, MODEL_FILES, "a reward model")
    made, old = (
        target.with_name(f".{target.name}.{uuid.uuid4().hex}{what}") for what in (".new", REPLACED)
    )
    try:
        with refusals_named(target):
            made.mkdir(parents=True)
        yield made
        with refusals_named(target):
            _swap(made, target, old)
    finally:
        shutil.rmtree(made, ignore_errors=True)


def left_by_a_kill(folder: Path) -> list[Path]:
    """What `folder` held, where a kill between two renames left it beside; newest last."""
    target = Path(folder).resolve()
    return sorted(
        target.parent.glob(f".{target.name}.*{REPLACED}"), key=lambda path: path.stat().st_mtime
    )


def refuse_foreign(folder: Path, own: re.Pattern[str], of: str) -> None:
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

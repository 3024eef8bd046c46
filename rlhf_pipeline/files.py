"""Writes a file whole or not at all. Knows what a disk refuses; knows nothing of what is
written.
"""

import contextlib
import errno
import os
import uuid
from collections.abc import Iterator
from pathlib import Path
from typing import IO

from rlhf_pipeline.errors import ArtefactError

CURES = {
    errno.ENOSPC: "Free some space",
    errno.EDQUOT: "Free some space",
    errno.EISDIR: "Name a file, not a folder",
    errno.ENOTDIR: "Name a place below folders, not below a file",
    errno.EEXIST: "Name a place below folders, not below a file",
    errno.ENAMETOOLONG: "Give a shorter name",
    errno.EPIPE: "Let what reads it read to the end",
}


def write_atomically(path: Path, content: bytes) -> None:
    """`path` holds either what it held before or all of `content`, on disk, whatever kills the
    writer; makes missing folders.

    A link keeps pointing where it points; a device or pipe is written to. Raises ArtefactError
    where the disk refuses.
    """
    with open_atomically(path) as file:
        file.write(content)


@contextlib.contextmanager
def open_atomically(path: Path) -> Iterator[IO[bytes]]:
    """`write_atomically` for what is too large to hold: a file that takes the place of `path` once
    the block ends without an error.
    """
    with translate_write_errors(path):
        if path.exists() and not path.is_file() and not path.is_dir():
            # to move a file onto /dev/stdout would take the device away
            with path.open("wb") as file:
                yield file
            return
        target = Path(os.path.realpath(path))
        if target.is_dir():  # said before hours of writing, not after
            raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR))
        target.parent.mkdir(parents=True, exist_ok=True)
        with _open_replacement(target) as file:
            yield file


@contextlib.contextmanager
def translate_write_errors(path: os.PathLike[str] | str) -> Iterator[None]:
    """An OSError inside becomes an ArtefactError that names `path`, cause and cure."""
    try:
        yield
    except OSError as cause:
        cure = CURES.get(cause.errno or 0, "Make the folder writable")
        raise ArtefactError(
            f"Cannot write {path}: {cause.strerror or cause}. {cure} and run again; what was there "
            "before is untouched."
        ) from cause


@contextlib.contextmanager
def _open_replacement(path: Path) -> Iterator[IO[bytes]]:
    temporary = path.with_name(f".{path.name}.{uuid.uuid4().hex}.tmp")
    try:
        with temporary.open("wb") as file:
            yield file
            file.flush()
            os.fsync(file.fileno())
        os.replace(temporary, path)
    finally:
        with contextlib.suppress(OSError):
            temporary.unlink()

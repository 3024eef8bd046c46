"""Writes files atomically: the whole new content or none of it."""

import contextlib
import errno
import os
import re
import shutil
import uuid
from collections.abc import Iterator
from pathlib import Path
from typing import IO

from rlhf_pipeline.core.errors import ArtefactError

CURES = {
    errno.ENOSPC: "Free some space",
    errno.EDQUOT: "Free some space",
    errno.EISDIR: "Name a file, not a folder",
    errno.ENOTDIR: "Choose a path whose parents are folders",
    errno.EEXIST: "Choose a path whose parents are folders",
    errno.ENAMETOOLONG: "Give a shorter name",
    errno.EIO: "Check that the disk works",
    errno.EPIPE: "Keep the reading process open to the end",
}

# numbers of a disk that is full or may not be written; EFBIG is a limit of file sizes
WRITE_REFUSALS = frozenset(
    (errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EACCES, errno.EPERM, errno.EROFS)
)

# It hides why: "unexpected pos 576 vs 534" is a file shorter than what was written.
TORCH_WRITER = re.compile(r"PytorchStreamWriter|inline_container\.cc.* unexpected pos")


def write_atomically(path: Path, content: bytes) -> None:
    """Write `content` to `path` durably: a killed writer leaves the old content. Creates missing
    folders.

    Symbolic links are followed; devices and pipes are written directly. Raises ArtefactError if the
    write fails.
    """
    with open_atomically(path) as file:
        file.write(content)


@contextlib.contextmanager
def open_atomically(path: Path) -> Iterator[IO[bytes]]:
    """`write_atomically` for content too large for memory: yields a file that replaces `path` when
    the block ends without an error.
    """
    with translate_write_errors(path):
        if path.exists() and not path.is_file() and not path.is_dir():
            # moving a file onto /dev/stdout would remove the device
            with path.open("wb") as file:
                yield file
            return
        target = Path(os.path.realpath(path))
        if target.is_dir():  # fail before hours of writing, not after
            raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR))
        target.parent.mkdir(parents=True, exist_ok=True)
        with _open_replacement(target) as file:
            yield file


@contextlib.contextmanager
def translate_write_errors(path: os.PathLike[str] | str) -> Iterator[None]:
    """Turn the disk's refusal inside the block into an ArtefactError that names `path`, cause and
    cure.
    """
    try:
        yield
    except Exception as cause:
        refusal = find_refusal(cause)
        if refusal is None:
            raise
        cure = CURES.get(refusal.errno or 0, "Make the folder writable")
        raise ArtefactError(
            f"Cannot write {path}: {refusal.strerror}. {cure} and run again; the previous file is "
            "untouched."
        ) from cause


def find_refusal(error: BaseException) -> OSError | None:
    """What the disk refused, with its number and text, where `error` reports that; otherwise None.
    Libraries that write weights raise no OSError.
    """
    text = str(error)
    if number := re.search(r"\(os error (\d+)\)", text):  # Rust: safetensors and tokenizers
        return OSError(int(number[1]), os.strerror(int(number[1])))
    if isinstance(error, shutil.Error):  # of copytree: a list of (source, target, cause)
        number = re.search(r"\[Errno (\d+)\]", text)
        return OSError(int(number[1]), os.strerror(int(number[1]))) if number else None
    if isinstance(error, RuntimeError) and TORCH_WRITER.search(text):
        return OSError(errno.ENOSPC, "torch could not write the whole file; the disk may be full")
    if isinstance(error, OSError):
        return OSError(error.errno or 0, error.strerror or text)
    return None


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

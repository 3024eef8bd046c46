"""A file is whole or what it was before, wherever it is written to."""

import errno
import os

import pytest

from rlhf_pipeline.core.errors import ArtefactError
from rlhf_pipeline.core.files import open_atomically, write_atomically


def names(folder):
    return sorted(path.name for path in folder.iterdir())


def test_a_file_is_replaced_and_missing_folders_are_made(tmp_path):
    path = tmp_path / "deep" / "er" / "log.txt"
    write_atomically(path, b"one")
    write_atomically(path, b"two")
    assert path.read_bytes() == b"two"
    assert names(path.parent) == ["log.txt"]


@pytest.mark.parametrize(
    ("number", "cure"),
    [
        (errno.ENOSPC, "Free some space"),
        (errno.EACCES, "Make the folder writable"),
        (errno.EIO, "Check that the disk works"),
    ],
)
def test_failed_write_keeps_the_old_file(tmp_path, monkeypatch, number, cure):
    path = tmp_path / "log.txt"
    write_atomically(path, b"one")

    def refuse(fd):
        raise OSError(number, os.strerror(number))

    monkeypatch.setattr(os, "fsync", refuse)
    with pytest.raises(ArtefactError, match=rf"log\.txt: {os.strerror(number)}\. {cure}"):
        write_atomically(path, b"two")
    assert path.read_bytes() == b"one"
    assert names(tmp_path) == ["log.txt"]


def test_streamed_file_replaces_the_old_one_at_the_end(tmp_path):
    path = tmp_path / "deep" / "log.txt"
    write_atomically(path, b"one")
    with open_atomically(path) as file:
        file.write(b"tw")
        assert path.read_bytes() == b"one"
        file.write(b"o")
    assert path.read_bytes() == b"two"
    assert names(path.parent) == ["log.txt"]


def test_failed_writer_keeps_the_old_file(tmp_path):
    path = tmp_path / "log.txt"
    write_atomically(path, b"one")

    def half_a_file():
        with open_atomically(path) as file:
            file.write(b"tw")
            raise KeyError("no more rows")

    with pytest.raises(KeyError, match="no more rows"):
        half_a_file()
    assert path.read_bytes() == b"one"
    assert names(tmp_path) == ["log.txt"]

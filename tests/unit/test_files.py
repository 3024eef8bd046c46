"""A file is whole or what it was before, wherever it is written to."""

import errno
import os
import shutil

import numpy as np
import pytest

from rlhf_pipeline.errors import ArtefactError
from rlhf_pipeline.files import open_atomically, translate_write_errors, write_atomically
from tests.full_disk import full_disk


def names(folder):
    return sorted(path.name for path in folder.iterdir())


def test_a_file_is_replaced_and_missing_folders_are_made(tmp_path):
    path = tmp_path / "deep" / "er" / "log.txt"
    write_atomically(path, b"one")
    write_atomically(path, b"two")
    assert path.read_bytes() == b"two"
    assert names(path.parent) == ["log.txt"]


def save_safetensors(path):
    from safetensors.numpy import save_file

    save_file({"weights": np.zeros(10_000)}, path)


def save_torch(path):
    import torch

    torch.save({"weights": torch.zeros(20_000)}, path)


def copy_folder(path):
    source = path.with_name("source")
    source.mkdir()
    (source / "weights").touch()
    os.truncate(source / "weights", 40_000)
    with full_disk(20_000):
        shutil.copytree(source, path)


@pytest.mark.parametrize(
    ("write", "said"),
    [
        (save_safetensors, "File too large"),
        (
            save_torch,
            r"torch could not write the whole file; .* full\. Free some space",
        ),
        (copy_folder, "File too large"),
    ],
)
def test_a_full_disk_is_named_whoever_writes(tmp_path, write, said):
    path = tmp_path / "model"
    expected = pytest.raises(ArtefactError, match=f"Cannot write {path}: {said}")
    with expected, translate_write_errors(path), full_disk(50_000):
        write(path)


@pytest.mark.parametrize(
    ("number", "cure"),
    [
        (errno.ENOSPC, "Free some space"),
        (errno.EACCES, "Make the folder writable"),
        (errno.EIO, "Check that the disk works"),
    ],
)
def test_a_disk_that_refuses_leaves_the_old_file(tmp_path, monkeypatch, number, cure):
    path = tmp_path / "log.txt"
    write_atomically(path, b"one")

    def refuse(fd):
        raise OSError(number, os.strerror(number))

    monkeypatch.setattr(os, "fsync", refuse)
    with pytest.raises(ArtefactError, match=rf"log\.txt: {os.strerror(number)}\. {cure}"):
        write_atomically(path, b"two")
    assert path.read_bytes() == b"one"
    assert names(tmp_path) == ["log.txt"]


@pytest.mark.parametrize(
    ("below", "cure"),
    [
        (".", "Name a file, not a folder"),
        ("a/b", "parents are folders"),
        ("a/b/c", "parents are folders"),
    ],
)
def test_a_place_that_can_hold_no_file_is_named_with_its_cure(tmp_path, below, cure):
    (tmp_path / "a").write_bytes(b"mine")
    with pytest.raises(ArtefactError, match=cure):
        write_atomically(tmp_path / below, b"one")
    assert names(tmp_path) == ["a"]


def test_a_file_written_piece_by_piece_takes_its_place_at_the_end(tmp_path):
    path = tmp_path / "deep" / "log.txt"
    write_atomically(path, b"one")
    with open_atomically(path) as file:
        file.write(b"tw")
        assert path.read_bytes() == b"one"
        file.write(b"o")
    assert path.read_bytes() == b"two"
    assert names(path.parent) == ["log.txt"]


def test_a_writer_that_fails_leaves_the_old_file(tmp_path):
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

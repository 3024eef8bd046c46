"""A store that is opened to be read only makes and changes nothing."""

import hashlib
import sqlite3
from contextlib import closing
from pathlib import Path

import pytest

from rlhf_pipeline.core.errors import StoreError
from rlhf_pipeline.store import Store, migrations
from rlhf_pipeline.store.database_copy import find_damage


def opened(path: Path) -> Store:
    return Store.open_read_only(f"sqlite:///{path}")


def tree(folder: Path) -> dict[str, str]:
    """Hash of each file, but of the memory that processes share to read."""
    return {
        p.name: hashlib.sha256(p.read_bytes()).hexdigest()
        for p in folder.rglob("*")
        if p.is_file() and p.suffix != ".db-shm"
    }


def test_missing_store_is_named_and_not_made(tmp_path: Path) -> None:
    with pytest.raises(StoreError, match=r"store\.db is missing.*rlhf restore"):
        opened(tmp_path / "deep" / "store.db")
    assert list(tmp_path.iterdir()) == []


def test_reading_leaves_no_files_beside_the_store(tmp_path: Path, migrated: Path) -> None:
    (tmp_path / "store.db").write_bytes(migrated.read_bytes())
    before = tree(tmp_path)
    with opened(tmp_path / "store.db") as store:
        assert migrations.read_version(store.database) == migrations.HEAD
    assert find_damage(tmp_path / "store.db") == ""
    assert tree(tmp_path) == before


@pytest.mark.parametrize("is_link", [False, True])
def test_log_of_a_store_in_use_is_read(tmp_path: Path, is_link: bool) -> None:
    path = tmp_path / "store.db"
    if is_link:
        (tmp_path / "disk").mkdir()
        path.symlink_to(tmp_path / "disk" / "store.db")
    with closing(sqlite3.connect(path)) as writer:
        writer.execute("PRAGMA journal_mode=WAL")
        writer.execute("CREATE TABLE alembic_version (version_num TEXT)")
        writer.execute("INSERT INTO alembic_version VALUES ('0042')")
        writer.commit()
        before = tree(tmp_path)
        with opened(path) as store:
            assert migrations.read_version(store.database) == "0042"
        assert tree(tmp_path) == before


def test_read_only_store_refuses_writes(tmp_path: Path, migrated: Path) -> None:
    (tmp_path / "store.db").write_bytes(migrated.read_bytes())
    with (
        opened(tmp_path / "store.db") as store,
        pytest.raises(StoreError, match="cannot be written"),
    ):
        store.completions_cache.put_many({"k": "v"})


def test_damaged_page_is_found(tmp_path: Path, migrated: Path) -> None:
    content = bytearray(migrated.read_bytes())
    content[4096 * 3 : 4096 * 3 + 8] = b"\xff" * 8
    (tmp_path / "store.db").write_bytes(content)
    assert find_damage(tmp_path / "store.db")

"""Slow starting points, built once per test run and shared by its workers; tests copy what they
change.
"""

import shutil
from collections.abc import Callable
from pathlib import Path

import pytest
from filelock import FileLock

from rlhf_pipeline.store import Store


def build_once(factory: pytest.TempPathFactory, name: str, build: Callable[[Path], object]) -> Path:
    """The path `name`, made by the first worker that asks for it; the others wait for that. Read
    only.
    """
    base = factory.getbasetemp()
    # Each worker of pytest-xdist has a folder of its own below that of the run.
    shared = (base.parent if base.name.startswith("popen-") else base) / "once"
    shared.mkdir(exist_ok=True)
    path, finished = shared / name, shared / f"{name}.finished"
    with FileLock(f"{path}.lock"):
        if not finished.exists():
            shutil.rmtree(path, ignore_errors=True)
            build(path)
            finished.touch()
    return path


@pytest.fixture(scope="session")
def migrated(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """An empty SQLite store with its tables, to be copied."""
    return build_once(tmp_path_factory, "migrated", _migrate) / "store.db"


def _migrate(folder: Path) -> None:
    with Store.open(f"sqlite:///{folder / 'store.db'}") as store:
        store.migrate()

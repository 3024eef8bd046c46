"""A fresh SQLite store whose clock a test moves, and the settings of its home."""

import shutil
from collections.abc import Iterator
from datetime import datetime, timedelta
from pathlib import Path

import pytest

from rlhf_pipeline.core.config import Settings
from rlhf_pipeline.core.records import utc_now
from rlhf_pipeline.store import Store


class ShiftedClock:
    """The real time and what a test adds to it."""

    def __init__(self) -> None:
        self.shift = timedelta()

    def now(self) -> datetime:
        return utc_now() + self.shift


@pytest.fixture(scope="session")
def migrated(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """An empty store, migrated once and copied for each test."""
    path = tmp_path_factory.mktemp("migrated") / "store.db"
    with Store.open(f"sqlite:///{path}") as store:
        store.migrate()
    return path


@pytest.fixture
def settings(tmp_path: Path) -> Settings:
    return Settings(home=tmp_path / "home", project="demo")


@pytest.fixture
def clock() -> ShiftedClock:
    return ShiftedClock()


@pytest.fixture
def store(settings: Settings, migrated: Path, clock: ShiftedClock) -> Iterator[Store]:
    with Store.open(settings.store_url, clock=clock) as store:
        assert store.database.path is not None
        shutil.copy(migrated, store.database.path)
        yield store

"""A home that an earlier version made, unpacked and migrated: for tests of what an upgrade must
keep.
"""

import json
import shutil
import tarfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from rlhf_pipeline.artefacts import Artefacts
from rlhf_pipeline.config import Settings
from rlhf_pipeline.store import Store

FIXTURES = Path(__file__).parent / "fixtures"


@dataclass(frozen=True)
class UpgradedHome:
    """Its settings, its open store, and what the version that made it read there; see
    tests/fixtures/make_home.py.
    """

    settings: Settings
    store: Store
    facts: dict[str, Any]

    @property
    def files(self) -> Artefacts:
        return Artefacts(self.settings.frames)


@pytest.fixture(scope="session")
def home_0010(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The home as commit 5419a48 left it, unpacked once. Read only: copy it."""
    folder = tmp_path_factory.mktemp("home_0010")
    with tarfile.open(FIXTURES / "home_0010.tar.xz") as archive:
        archive.extractall(folder, filter="data")
    return folder


@pytest.fixture
def upgraded_home(home_0010: Path, tmp_path: Path) -> Iterator[UpgradedHome]:
    """A copy of `home_0010` for one test, its store migrated to the newest tables."""
    home = tmp_path / "upgraded"
    shutil.copytree(home_0010, home)
    settings = Settings(home=home, completion_backend="template")
    facts = json.loads((FIXTURES / "home_0010.json").read_text(encoding="utf-8"))
    with Store.open(
        settings.store_url, organization=settings.organization, project=settings.project
    ) as store:
        store.migrate()
        yield UpgradedHome(settings, store, facts)

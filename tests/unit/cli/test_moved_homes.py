"""A home that was copied or moved works where it lies now, and nothing is written anywhere else."""

import shutil
from pathlib import Path

import pytest

from rlhf_pipeline.cli.context import Workspace
from rlhf_pipeline.cli.init import prepare
from rlhf_pipeline.core.config import Settings
from rlhf_pipeline.store import Store
from rlhf_pipeline.store.database_copy import copy_sqlite

STRANGE = "a b#c é~d@e:f&g+h'i;j"


def contents(home: Path) -> dict[str, bytes]:
    return {
        str(path.relative_to(home)): path.read_bytes() for path in home.rglob("*") if path.is_file()
    }


def write_a_run(home: Path) -> Path:
    """One MLflow run with a file; the champion's folder."""
    workspace = Workspace(Settings(home=home))
    with workspace.registry.run("moved") as run:
        run.log_metrics({"n": 1.0})
        run.log_file(b"moved", "moved.txt")
    return workspace.champions.policy_folder()


@pytest.fixture
def home(initialised: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(initialised, tmp_path / "first"))


def test_work_on_a_copy_leaves_the_original_alone(home: Path, tmp_path: Path) -> None:
    before = contents(home)
    copy = Path(shutil.copytree(home, tmp_path / "copy"))
    assert write_a_run(copy).is_relative_to(copy)
    assert list(copy.rglob("moved.txt"))
    assert contents(home) == before


def test_models_of_a_home_with_strange_signs_load(home: Path, tmp_path: Path) -> None:
    strange = home.rename(tmp_path / STRANGE)
    before = contents(Path(shutil.copytree(strange, tmp_path / f"{STRANGE}2")))
    assert write_a_run(strange).is_relative_to(strange)
    assert sorted(path.name for path in tmp_path.iterdir()) == [STRANGE, f"{STRANGE}2"]
    assert contents(tmp_path / f"{STRANGE}2") == before


@pytest.mark.parametrize("sign", [" ", "#", "é", "@", "&", "+", '"'])
def test_two_homes_with_a_strange_sign_are_two_stores(tmp_path: Path, sign: str) -> None:
    for name in (f"q{sign}1", f"q{sign}2"):
        settings = Settings.read({"RLHF_HOME": str(tmp_path / name)}, tmp_path)
        with (
            Store.open(settings.store_url) as store,
            store.database.write_transaction() as connection,
        ):
            connection.exec_driver_sql("CREATE TABLE t (n INTEGER)")
        copy_sqlite(settings.home / "store.db", settings.home / "copy.db")
    databases = {str(path.relative_to(tmp_path)) for path in tmp_path.rglob("*.db")}
    assert databases == {f"q{sign}{n}/{file}.db" for n in "12" for file in ("store", "copy")}
    assert len(list(tmp_path.iterdir())) == 2


def test_only_the_owner_reads_a_home(tmp_path: Path) -> None:
    home = tmp_path / "home"
    home.mkdir(mode=0o755)
    workspace = Workspace(Settings(home=home))
    prepare(workspace)
    assert home.stat().st_mode & 0o777 == 0o700
    files = ("project.json", "store.db")  # logs of SQLite come and go
    assert {name: (home / name).stat().st_mode & 0o777 for name in files} == dict.fromkeys(
        files, 0o600
    )

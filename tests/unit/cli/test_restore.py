"""`rlhf storage restore` puts a backup back over a damaged home, and where the backed up home's files are gone."""

import shutil
import sqlite3
from contextlib import closing
from pathlib import Path

import pytest
from click.testing import Result
from typer.testing import CliRunner

from rlhf_pipeline.cli import app
from rlhf_pipeline.cli.context import Workspace
from rlhf_pipeline.cli.init import prepare
from rlhf_pipeline.config import HomeFacts, Settings
from tests.learnt_home import NOON, comparisons


@pytest.fixture(scope="module")
def backed_up(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with `home`, which holds three comparisons and no model, and its `backup`."""
    folder = tmp_path_factory.mktemp("backed-up")
    workspace = Workspace(Settings(home=folder / "home"))
    prepare(workspace)
    workspace.store.comparisons.publish(comparisons(3), published_at=NOON)
    workspace.store.close()
    assert rlhf(folder / "home", "storage", "backup", str(folder / "backup")).exit_code == 0
    return folder


@pytest.fixture
def home(backed_up: Path, tmp_path: Path) -> Path:
    """A copy of the home."""
    return Path(shutil.copytree(backed_up / "home", tmp_path / "home"))


@pytest.fixture
def backup(backed_up: Path) -> Path:
    return backed_up / "backup"


def rlhf(home: Path, *arguments: str, **environ: str) -> Result:
    return CliRunner().invoke(app, arguments, env={"RLHF_HOME": str(home), "COLUMNS": "200", **environ}, catch_exceptions=False)


def n_comparisons(home: Path) -> int:
    with closing(sqlite3.connect(f"file:{home}/store.db?mode=ro", uri=True)) as database:
        return int(database.execute("SELECT count(*) FROM comparisons").fetchone()[0])


@pytest.mark.parametrize("arguments", [(), ("--replace",)], ids=["empty", "replaced"])
def test_home_without_models_is_restored_elsewhere(backed_up: Path, backup: Path, tmp_path: Path, arguments: tuple[str, ...]) -> None:
    elsewhere = tmp_path / "elsewhere"
    if arguments:
        prepare(Workspace(Settings(home=elsewhere)))
    result = rlhf(elsewhere, "storage", "restore", str(backup), *arguments)
    assert result.exit_code == 0, result.output
    assert n_comparisons(elsewhere) == 3
    assert HomeFacts.of(elsewhere) is not None
    assert not (elsewhere / "mlflow").exists()
    assert rlhf(elsewhere, "users", "list").exit_code == 0

"""`rlhf restore` puts a backup back over a damaged home, and where the backed up home's
files are gone.
"""

import os
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
from rlhf_pipeline.errors import StoreError
from tests.learnt_home import NOON, comparisons


@pytest.fixture(scope="module")
def backed_up(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with `home`, which holds three comparisons and no model, and its `backup`."""
    folder = tmp_path_factory.mktemp("backed-up")
    workspace = Workspace(Settings(home=folder / "home"))
    prepare(workspace)
    workspace.store.comparisons.publish(comparisons(3), published_at=NOON)
    workspace.store.close()
    assert rlhf(folder / "home", "backup", str(folder / "backup")).exit_code == 0
    return folder


@pytest.fixture
def home(backed_up: Path, tmp_path: Path) -> Path:
    """A copy of the home."""
    return Path(shutil.copytree(backed_up / "home", tmp_path / "home"))


@pytest.fixture
def backup(backed_up: Path) -> Path:
    return backed_up / "backup"


def rlhf(home: Path, *arguments: str, **environ: str) -> Result:
    return CliRunner().invoke(
        app,
        arguments,
        env={"RLHF_HOME": str(home), "COLUMNS": "200", **environ},
        catch_exceptions=False,
    )


def n_comparisons(home: Path) -> int:
    with closing(sqlite3.connect(f"file:{home}/store.db?mode=ro", uri=True)) as database:
        return int(database.execute("SELECT count(*) FROM comparisons").fetchone()[0])


def damage_header(home: Path) -> None:
    with (home / "store.db").open("r+b") as file:
        file.write(b"\xff" * 100)


def damage_first_page(home: Path) -> None:
    with (home / "store.db").open("r+b") as file:
        file.seek(100)
        file.write(b"\xff" * 1000)


def cut_short(home: Path) -> None:
    os.truncate(home / "store.db", 5000)


DAMAGES = pytest.mark.parametrize("damage", [damage_header, damage_first_page, cut_short])


@DAMAGES
def test_damaged_store_is_replaced_by_a_backup(home: Path, backup: Path, damage: object) -> None:
    assert callable(damage)
    damage(home)
    result = rlhf(home, "restore", str(backup), "--replace")
    assert result.exit_code == 0, result.output
    assert "Cannot tell whether runs are under way" in result.output
    assert n_comparisons(home) == 3
    assert next(home.glob("replaced-*/store.db")).exists()
    assert rlhf(home, "check").exit_code == 0


def test_damaged_history_of_dagster_is_replaced_by_a_backup(home: Path, backup: Path) -> None:
    history = home / "dagster" / "history"
    history.mkdir(exist_ok=True)
    (history / "runs.db").write_bytes(b"\xff" * 5000)
    result = rlhf(home, "restore", str(backup), "--replace")
    assert result.exit_code == 0, result.output
    assert "Cannot tell whether Dagster's daemon works here" in result.output
    assert n_comparisons(home) == 3


@DAMAGES
def test_check_reports_a_damaged_store(home: Path, damage: object) -> None:
    assert callable(damage)
    damage(home)
    result = rlhf(home, "check")
    assert result.exit_code == 1
    assert "trouble" in result.output
    assert "estore" in result.output
    assert "free disk" in result.output


def test_other_commands_still_refuse_a_damaged_store(home: Path) -> None:
    damage_header(home)
    for command in [("users", "list"), ("init",)]:
        with pytest.raises(StoreError, match="file is not a database"):
            rlhf(home, *command)


def test_store_with_a_run_under_way_is_not_replaced(home: Path, backup: Path) -> None:
    with Workspace(Settings(home=home)).store as store:
        store.heartbeats.beat("run", pid=1, host="h", job="learning")
    result = CliRunner().invoke(
        app, ["restore", str(backup), "--replace"], env={"RLHF_HOME": str(home)}
    )
    assert result.exit_code == 1
    assert "1 runs are under way (learning)" in str(result.exception)


@pytest.mark.parametrize("arguments", [(), ("--replace",)], ids=["empty", "replaced"])
def test_home_without_models_is_restored_elsewhere(
    backed_up: Path, backup: Path, tmp_path: Path, arguments: tuple[str, ...]
) -> None:
    elsewhere = tmp_path / "elsewhere"
    if arguments:
        prepare(Workspace(Settings(home=elsewhere)))
    result = rlhf(elsewhere, "restore", str(backup), *arguments)
    assert result.exit_code == 0, result.output
    assert n_comparisons(elsewhere) == 3
    assert HomeFacts.load(elsewhere) is not None
    assert not (elsewhere / "mlflow").exists()
    assert rlhf(elsewhere, "users", "list").exit_code == 0


@pytest.fixture
def configured(tmp_path: Path) -> Path:
    """A folder with `home`, its `backup`, and no longer the settings file that both recorded."""
    folder = tmp_path / "configured"
    config = folder / "rlhf.yaml"
    folder.mkdir()
    config.write_text("keep_days: 7\n")
    prepare(Workspace(Settings(home=folder / "home", config=config)))
    assert rlhf(folder / "home", "backup", str(folder / "backup")).exit_code == 0
    config.unlink()
    return folder


@pytest.mark.parametrize("name", ["elsewhere", "home"])
def test_home_is_restored_without_its_settings_file(configured: Path, name: str) -> None:
    result = rlhf(configured / name, "restore", str(configured / "backup"), "--replace")
    assert result.exit_code == 0, result.output
    assert (
        "rlhf.yaml, the settings of the backed up home, is not on this machine: defaults apply"
        in result.output
    )
    facts = HomeFacts.load(configured / name)
    assert facts is not None
    assert facts.config is None
    assert rlhf(configured / name, "users", "list").exit_code == 0


def test_restored_home_keeps_the_settings_file_that_is_there(configured: Path) -> None:
    (configured / "rlhf.yaml").write_text("keep_days: 7\n")
    result = rlhf(configured / "elsewhere", "restore", str(configured / "backup"))
    assert result.exit_code == 0, result.output
    assert (
        Settings.read({"RLHF_HOME": str(configured / "elsewhere")}, configured / "home").keep_days
        == 7
    )

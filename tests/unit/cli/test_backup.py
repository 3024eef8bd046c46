"""`rlhf backup` and `rlhf restore`: every row and file comes back, and damage is named."""

import os
import shutil
import sqlite3
import subprocess
import sys
from collections.abc import Callable
from contextlib import closing
from pathlib import Path

import pytest
from click.testing import Result
from typer.testing import CliRunner

from rlhf_pipeline.cli import app
from rlhf_pipeline.cli.backup import Manifest
from rlhf_pipeline.cli.context import Workspace
from rlhf_pipeline.cli.init import prepare
from rlhf_pipeline.core.config import HomeFacts, Settings
from rlhf_pipeline.core.errors import ConfigurationError
from tests.used_home import DAY, N, damage_page, flip, used_home, weights_of


@pytest.fixture(scope="module")
def used(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return used_home(tmp_path_factory.mktemp("used"))


@pytest.fixture(scope="module")
def backup(used: Path) -> Path:
    folder = used.parent / "backup"
    assert rlhf(used, "backup", str(folder)).exit_code == 0
    return folder


@pytest.fixture
def home(used: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(used, tmp_path / "home"))


def rlhf(home: Path, *arguments: str, **environ: str) -> Result:
    environ = {"RLHF_HOME": str(home), "COLUMNS": "200", **environ}
    return CliRunner().invoke(app, arguments, env=environ, catch_exceptions=False)


def rows(file: Path, but: tuple[str, ...] = ()) -> dict[str, list[tuple[object, ...]]]:
    with closing(sqlite3.connect(f"file:{file}?mode=ro", uri=True)) as database:
        tables = database.execute("SELECT name FROM sqlite_master WHERE type = 'table'").fetchall()
        return {
            name: sorted(database.execute(f'SELECT * FROM "{name}"').fetchall(), key=repr)
            for (name,) in tables
            if name not in but
        }


def files(home: Path, *names: str) -> dict[str, bytes]:
    paths = [path for name in names for path in (home / name).rglob("*") if path.is_file()]
    return {str(path.relative_to(home)): path.read_bytes() for path in paths}


DAMAGE: dict[str, tuple[Callable[[Path], object], str]] = {
    "page of the store": (lambda home: damage_page(home / "store.db"), "store.db is damaged"),
    "no database": (
        lambda home: (home / "mlflow" / "mlflow.db").write_bytes(b"\xff" * 5000),
        "mlflow.db is damaged",
    ),
    "model": (lambda home: flip(weights_of(home), 20), "demo.policy@1, was changed"),
    "frame": (
        lambda home: os.truncate(home / "frames" / "votes" / f"{DAY}.parquet", 500),
        f"{DAY}.parquet",
    ),
}


@pytest.mark.parametrize(("damage", "named"), DAMAGE.values(), ids=DAMAGE)
def test_backup_and_restore_name_damage_and_finish(
    home: Path, tmp_path: Path, damage: Callable[[Path], object], named: str
) -> None:
    damage(home)
    folder = tmp_path / "backup"
    result = CliRunner().invoke(app, ["backup", str(folder)], env={"RLHF_HOME": str(home)})
    assert result.exit_code == 1
    assert named in " ".join(Manifest.load(folder).damage)
    if "database" in named or "store" in named or "mlflow" in named:
        return  # what SQLite cannot read is refused when the home is opened
    restored = rlhf(tmp_path / "restored", "restore", str(folder))
    assert restored.exit_code == 1
    assert named in " ".join(restored.output.split())
    assert len(rows(tmp_path / "restored" / "store.db")["votes"]) == 2 * N


def test_backup_without_a_dump_is_refused_before_any_change(
    home: Path, backup: Path, tmp_path: Path
) -> None:
    folder = Path(shutil.copytree(backup, tmp_path / "partly"))
    (folder / "store.dump").touch()
    server = "postgresql://somebody@127.0.0.1:9/postgres"
    with pytest.raises(
        ConfigurationError, match=r"lacks dagster\.dump, mlflow\.dump\. Nothing was"
    ):
        rlhf(tmp_path / "restored", "restore", str(folder), "--replace", RLHF_SERVER_URL=server)
    assert not (tmp_path / "restored").exists()


def test_link_that_leads_nowhere_is_left_out_of_a_backup(
    home: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """And one that leads somewhere is not, from whatever folder."""
    (home / "models" / "dangling").symlink_to("nothing")
    (home / "models" / "file").write_text("content")
    (home / "models" / "link").symlink_to("file")
    monkeypatch.chdir(tmp_path)
    assert rlhf(home, "backup", str(tmp_path / "linked")).exit_code == 0
    models = tmp_path / "linked" / "models"
    assert (models / "link").read_text() == "content"
    assert not (models / "dangling").is_symlink()


def test_folder_without_a_finished_backup_is_refused(home: Path, tmp_path: Path) -> None:
    with pytest.raises(ConfigurationError, match=r"not a finished backup.*rlhf backup"):
        rlhf(home, "restore", str(tmp_path), "--replace")


def test_unsuitable_backup_folder_is_refused(home: Path) -> None:
    (home.parent / "other").mkdir()
    (home.parent / "other" / "file").touch()
    with pytest.raises(ConfigurationError, match="is not empty"):
        rlhf(home, "backup", str(home.parent / "other"))
    for inside in (home / "frames" / "backup", home.parent):
        with pytest.raises(ConfigurationError, match=r"is inside .*, or contains it"):
            rlhf(home, "backup", str(inside))


def test_home_in_use_is_not_replaced(home: Path, backup: Path) -> None:
    program = f"import sys; file = open({str(home / 'store.db')!r}); print(1, flush=True); input()"
    with subprocess.Popen(
        [sys.executable, "-c", program], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    ) as process:
        assert process.stdout is not None
        process.stdout.readline()
        with pytest.raises(ConfigurationError, match=rf"is in use: .*\({process.pid}\)"):
            rlhf(home, "restore", str(backup), "--replace")
        process.communicate(b"\n")


@pytest.fixture
def configured(tmp_path: Path) -> Path:
    """A folder with `home`, its `backup`, and no longer the settings file that both recorded."""
    folder = tmp_path / "configured"
    config = folder / "rlhf.yaml"
    folder.mkdir()
    config.write_text("quiet_minutes: 7\n")
    with Workspace(Settings(home=folder / "home", config=config)).store:
        prepare(Workspace(Settings(home=folder / "home", config=config)))
    assert rlhf(folder / "home", "backup", str(folder / "backup")).exit_code == 0
    config.unlink()
    return folder


def test_home_is_restored_without_its_settings_file(configured: Path) -> None:
    result = rlhf(configured / "elsewhere", "restore", str(configured / "backup"))
    assert result.exit_code == 0, result.output
    assert "rlhf.yaml, the settings of the backed up home, is not on this" in result.output
    facts = HomeFacts.load(configured / "elsewhere")
    assert facts is not None
    assert facts.config is None

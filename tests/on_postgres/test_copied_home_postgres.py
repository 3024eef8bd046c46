"""A copy of a home on a server is refused: both would write into the same databases."""

import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest
from typer.testing import CliRunner

from rlhf_pipeline.cli import app
from rlhf_pipeline.cli.context import Workspace
from rlhf_pipeline.config import Settings
from rlhf_pipeline.errors import ConfigurationError, StoreError
from tests.postgres import PostgresServer


@pytest.fixture
def home(tmp_path: Path, tiny_policy: Path, postgres: PostgresServer) -> Iterator[Path]:
    environ = {
        "RLHF_SERVER_URL": postgres.url,
        "RLHF_DATABASE_PREFIX": "copied",
        "RLHF_POLICY": str(tiny_policy),
    }
    result = CliRunner().invoke(
        app, ["init"], env=environ | {"RLHF_HOME": str(tmp_path / "first")}, catch_exceptions=False
    )
    assert result.exit_code == 0
    yield tmp_path / "first"
    for kind in ("store", "dagster", "mlflow"):
        postgres.drop_database(f"copied_{kind}")


def rlhf(home: Path, *arguments: str) -> None:
    CliRunner().invoke(app, arguments, env={"RLHF_HOME": str(home)}, catch_exceptions=False)


def test_copy_is_refused_until_it_takes_the_place_of_the_first(home: Path, tmp_path: Path) -> None:
    copy = Path(shutil.copytree(home, tmp_path / "copy"))
    before = {path: path.read_bytes() for path in home.rglob("*") if path.is_file()}
    for command in (["users", "list"], ["init"], ["models", "list"]):
        with pytest.raises(
            ConfigurationError, match=r"copy is a copy of .*first, or was moved.*rlhf init --join"
        ):
            rlhf(copy, *command)
    rlhf(copy, "init", "--join")
    workspace = Workspace(Settings.read({"RLHF_HOME": str(copy)}, tmp_path))
    with workspace.registry.run("moved") as run:
        run.log_text("moved", "moved.txt")
    assert workspace.champions.policy_folder().is_relative_to(copy)
    with pytest.raises(
        StoreError,
        match=r"MLflow's database records the files of 'demo' in .*copy.*rlhf "
        r"init --join",
    ):
        rlhf(home, "models", "list")
    assert {path: path.read_bytes() for path in home.rglob("*") if path.is_file()} == before

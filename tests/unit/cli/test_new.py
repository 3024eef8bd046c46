"""`rlhf new`: a project with every setting, whose own assets stand beside the loop's."""

import re
import subprocess
import sys
from pathlib import Path

import pytest
import yaml
from click.testing import Result
from typer.testing import CliRunner

from rlhf_pipeline.cli import app
from rlhf_pipeline.core.config import Settings
from rlhf_pipeline.improve.loop_settings import PARTS, LoopSettings


def rlhf(*words: str) -> Result:
    return CliRunner().invoke(app, [*words])


@pytest.fixture
def project(tmp_path: Path) -> Path:
    folder = tmp_path / "My Loop"
    assert rlhf("new", str(folder)).exit_code == 0
    return folder


def test_every_setting_is_in_the_file_at_its_default(project: Path) -> None:
    path = project / "rlhf.yaml"
    assert Settings.read({}, project).project == "my-loop"
    path.write_text(re.sub(r"(?m)^# ", "", path.read_text()))
    settings = Settings.read({}, project)
    paths = {"project", "home", "config"}
    assert settings.model_dump(exclude=paths) == Settings().model_dump(exclude=paths)
    loop = LoopSettings.read(settings)
    assert {part: loop.params(part) for part in PARTS} == {
        part: params() for part, params in PARTS.items()
    }
    assert {*yaml.safe_load(path.read_text())} >= {*Settings.model_fields} - {"config"}


def test_own_assets_load_beside_those_of_the_loop(project: Path) -> None:
    for name in ("assets", "jobs"):  # names of the application's folders collide with nothing
        (project / f"{name}.py").write_text("raise AssertionError('not to be imported')\n")
    script = (
        "from my_loop.definitions import defs; "
        "print(*(key.to_user_string() for key in defs.resolve_asset_graph().get_all_asset_keys()))"
    )
    listed = subprocess.run(
        [sys.executable, "-c", script], cwd=project, capture_output=True, text=True, check=True
    ).stdout.split()
    assert {"choices", "votes", "gate"} <= {*listed}


@pytest.mark.parametrize("name", ["9 lives", "rlhf_pipeline", "…", "class", "json", "dagster"])
def test_a_folder_that_cannot_name_a_package_is_refused(tmp_path: Path, name: str) -> None:
    result = rlhf("new", str(tmp_path / name))
    assert "name a Python package" in str(result.exception)
    assert not (tmp_path / name).exists()


def test_a_folder_with_files_is_left_alone(project: Path) -> None:
    (project / "rlhf.yaml").write_text("project: mine\n")
    assert "is not empty" in str(rlhf("new", str(project)).exception)
    assert (project / "rlhf.yaml").read_text() == "project: mine\n"

"""Which rlhf.yaml a process of a home reads, and which folders can be a home."""

from pathlib import Path

import pytest

from rlhf_pipeline.cli.context import Workspace
from rlhf_pipeline.cli.init import prepare
from rlhf_pipeline.core.config import HomeFacts, Settings
from rlhf_pipeline.core.errors import ConfigurationError
from rlhf_pipeline.store import homes


@pytest.fixture
def checkout(tmp_path: Path) -> Path:
    """A folder with an rlhf.yaml, and a home that recorded it."""
    folder = tmp_path / "checkout"
    folder.mkdir()
    (folder / "rlhf.yaml").write_text("votes_per_request: 7\nprompts_file: prompts.jsonl\n")
    prepare(Workspace(Settings.read({"RLHF_HOME": str(tmp_path / "home")}, folder)))
    return folder


def read(tmp_path: Path, folder: Path, **environ: str) -> Settings:
    return Settings.read({"RLHF_HOME": str(tmp_path / "home"), **environ}, folder)


def other_folder(tmp_path: Path, content: str | None = None) -> Path:
    folder = tmp_path / "other"
    folder.mkdir()
    if content is not None:
        (folder / "rlhf.yaml").write_text(content)
    return folder


def test_every_folder_reads_the_recorded_file(tmp_path: Path, checkout: Path) -> None:
    settings = read(tmp_path, other_folder(tmp_path))
    assert settings == read(tmp_path, checkout)
    assert (settings.votes_per_request, settings.config) == (7, checkout / "rlhf.yaml")
    assert settings.prompts_file == checkout / "prompts.jsonl"


def test_rlhf_config_overrides_the_recorded_file(tmp_path: Path, checkout: Path) -> None:
    other = other_folder(tmp_path, "votes_per_request: 9\n")
    assert read(tmp_path, checkout, RLHF_CONFIG=str(other / "rlhf.yaml")).votes_per_request == 9
    assert read(tmp_path, other, RLHF_CONFIG="rlhf.yaml").config == other / "rlhf.yaml"
    with pytest.raises(
        ConfigurationError, match=r"RLHF_CONFIG is .*nothing.yaml, which is not a file"
    ):
        read(tmp_path, checkout, RLHF_CONFIG="nothing.yaml")


def test_environment_overrides_one_field_of_a_section(tmp_path: Path) -> None:
    folder = other_folder(tmp_path, "retention:\n  run_days: 400\n  message_days: 500\n")
    retention = read(tmp_path, folder, RLHF_RETENTION__RUN_DAYS="30").retention
    assert (retention.run_days, retention.message_days) == (30, 500)


def test_recorded_file_that_is_gone_is_refused(tmp_path: Path, checkout: Path) -> None:
    (checkout / "rlhf.yaml").unlink()
    with pytest.raises(
        ConfigurationError,
        match=r"rlhf.yaml, the settings file of .*home, is missing.*RLHF_CONFIG=FILE rlhf init",
    ):
        read(tmp_path, tmp_path)
    other = other_folder(tmp_path, "votes_per_request: 9\n")
    settings = read(tmp_path, tmp_path, RLHF_CONFIG=str(other / "rlhf.yaml"))
    HomeFacts.change(settings.home, config=settings.config)
    assert read(tmp_path, tmp_path).votes_per_request == 9


def test_unrecorded_file_is_refused_until_init_records_it(tmp_path: Path) -> None:
    prepare(Workspace(Settings.read({"RLHF_HOME": str(tmp_path / "home")}, tmp_path)))
    other = other_folder(tmp_path, "votes_per_request: 9\n")
    with pytest.raises(
        ConfigurationError, match=r"home has not recorded .*rlhf.yaml.*Run `rlhf init` in .*other"
    ):
        read(tmp_path, other)
    prepare(
        Workspace(Settings.read({"RLHF_HOME": str(tmp_path / "home")}, other, initialising=True))
    )
    assert read(tmp_path, tmp_path).votes_per_request == 9


def test_child_processes_receive_the_settings_file(tmp_path: Path, checkout: Path) -> None:
    settings = read(tmp_path, checkout)
    assert settings.environ == {
        "RLHF_HOME": str(tmp_path / "home"),
        "RLHF_CONFIG": str(checkout / "rlhf.yaml"),
        "DAGSTER_HOME": str(tmp_path / "home" / "dagster"),
    }
    assert Settings.read(settings.environ, tmp_path) == settings


def test_dagster_home_of_another_home_is_refused(tmp_path: Path) -> None:
    settings = Settings(home=tmp_path / "a")
    for passing in (
        {},
        {"DAGSTER_HOME": ""},
        {"DAGSTER_HOME": str(tmp_path / "x" / ".." / "a" / "dagster")},
    ):
        homes.refuse_other_dagster_home(settings, passing)
    with pytest.raises(
        ConfigurationError,
        match=r"DAGSTER_HOME is .*/b/dagster, but RLHF_HOME is .*/a\..*set "
        r"DAGSTER_HOME=.*/a/dagster",
    ):
        homes.refuse_other_dagster_home(settings, {"DAGSTER_HOME": str(tmp_path / "b" / "dagster")})

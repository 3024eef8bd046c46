"""`rlhf settings`: parameters, changes and errors of the section `loop`."""

from pathlib import Path

import pytest
from typer.testing import CliRunner

from rlhf_pipeline.cli import app
from rlhf_pipeline.cli.context import Workspace
from rlhf_pipeline.cli.init import prepare
from rlhf_pipeline.core.config import Settings
from rlhf_pipeline.core.errors import ConfigurationError


@pytest.fixture
def file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    file = tmp_path / "rlhf.yaml"
    file.write_text("loop:\n  gate: {min_win_rate: 0.6}\n")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("RLHF_HOME", str(tmp_path / "home"))
    prepare(Workspace(Settings.read(initialising=True)))
    return file


def run(*words: str) -> str:
    result = CliRunner().invoke(app, ["settings", *words], catch_exceptions=False)
    assert result.exit_code == 0
    return result.output


def test_check_reports_every_problem(file: Path) -> None:
    assert "is valid; 1 loop parameters are set" in run("check")
    file.write_text("loop: {gate: {min_win: 1}, gat: {}}\n")
    with pytest.raises(ConfigurationError, match=r"(?s)Did you mean min_win_rate.*gat is unknown"):
        CliRunner().invoke(app, ["settings", "check"], catch_exceptions=False)


def test_check_reads_a_file_that_is_not_recorded(
    file: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "new").mkdir()
    monkeypatch.chdir(tmp_path / "new")
    monkeypatch.setenv("RLHF_HOME", str(tmp_path / "new" / "home"))
    prepare(Workspace(Settings.read(initialising=True)))
    (tmp_path / "new" / "rlhf.yaml").write_text("quiet_minutes: 3\n")
    assert "`rlhf init` records it" in run("check")


@pytest.mark.parametrize(
    ("target", "problem"),
    [
        ("{channel: apprise, url: nonsense}", "apprise cannot use the url"),
        ("{channel: webhook, url: 'https://no.such.host.invalid', secret: x}", "must be whsec_"),
    ],
)
def test_check_refuses_a_target_that_no_message_reaches(
    file: Path, target: str, problem: str
) -> None:
    file.write_text(f"alert_targets: {{team: {target}}}\n")
    with pytest.raises(ConfigurationError, match=rf"alert_targets\.team: .*{problem}"):
        run("check")

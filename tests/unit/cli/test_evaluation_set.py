"""`rlhf prompts evaluation-set`: versions of the frozen prompts, and the latest as a file."""

from pathlib import Path

import pytest
from typer.testing import CliRunner

from rlhf_pipeline.cli import app
from rlhf_pipeline.cli.context import Workspace
from rlhf_pipeline.cli.init import prepare
from rlhf_pipeline.core.config import Settings
from rlhf_pipeline.core.errors import NotFound
from rlhf_pipeline.improve.evaluation_sets import freeze


def test_versions_are_listed_and_written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RLHF_HOME", str(tmp_path / "home"))
    monkeypatch.chdir(tmp_path)
    workspace = Workspace(Settings.read(initialising=True))
    prepare(workspace)

    def run(*words: str) -> str:
        words = ("prompts", "evaluation-set", *words)
        return CliRunner().invoke(app, words, catch_exceptions=False).output

    assert "the first collection freezes it" in run()
    with pytest.raises(NotFound, match="rlhf run collection"):
        run("--out", "set.jsonl")
    frozen = freeze(workspace.settings, workspace.store)
    assert frozen.prompts_hash[:12] in run("--out", "set.jsonl")
    assert (tmp_path / "set.jsonl").read_text().count("\n") == 300

"""`rlhf lab` needs no home: the suite is a table and a file."""

import pytest
from typer.testing import CliRunner

from rlhf_pipeline.cli import app


@pytest.fixture
def lab(tmp_path, monkeypatch):
    monkeypatch.setenv("RLHF_HOME", str(tmp_path / "no home"))

    def run(*arguments):
        return CliRunner().invoke(app, ["lab", *map(str, arguments)], catch_exceptions=False).output

    return run


def test_the_suite_prints_its_rows_and_writes_them(lab, tmp_path):
    out = tmp_path / "new" / "lab"
    options = ("--streams", 1, "--only", "young_model", "--only", "failing_topic")
    output = lab("suite", *options, "--out", out)
    assert "young_model" in output
    assert "failing_topic" in output
    assert (out / "laboratory.md").read_text(encoding="utf-8").startswith("# Laboratory\n")
    assert not (tmp_path / "no home").exists()

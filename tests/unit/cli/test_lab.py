"""`rlhf lab` needs no home: one world in the terminal, the suite as a table and two files."""

import json

import pytest
from typer.testing import CliRunner

from rlhf_pipeline.cli import app


@pytest.fixture
def lab(tmp_path, monkeypatch):
    monkeypatch.setenv("RLHF_HOME", str(tmp_path / "no home"))

    def run(*arguments):
        return CliRunner().invoke(app, ["lab", *map(str, arguments)], catch_exceptions=False).output

    return run


def test_one_world_shows_each_claim_beside_the_truth(lab):
    shown = lab("run", "young_model", "--seed", 3)
    assert "young_model, seed 3" in shown
    assert "after vote 0" in shown
    assert "retrain at vote" in shown
    again = json.loads(lab("run", "young_model", "--seed", 3, "--json"))
    assert again["claims"][0]["is_right"]


def test_the_suite_prints_its_rows_and_writes_them(lab, tmp_path):
    out = tmp_path / "new" / "lab"
    options = ("--streams", 1, "--only", "young_model", "--only", "failing_topic")
    shown = lab("suite", *options, "--out", out)
    assert "young_model" in shown
    assert "failing_topic" in shown
    assert (out / "laboratory.md").read_text(encoding="utf-8").startswith("# Laboratory\n")
    assert not (tmp_path / "no home").exists()

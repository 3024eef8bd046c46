import re
import sys
from pathlib import Path

import pytest
import typer
from typer.testing import CliRunner

from rlhf_pipeline.cli import COMMANDS, load_command, main
from rlhf_pipeline.core.errors import ConfigurationError
from rlhf_pipeline.core.records import (
    folder_hash,
)

EXPORTS = {
    "prompts": "generated_prompts.jsonl",
    "completions": "raw_completions_log.jsonl",
    "training-data": "vote_predictor_training_data.jsonl",
    "reflection-log": "meta_reflection_log.jsonl",
    "calibration-log": "calibration_log.json",
}


def command_paths(command, path):
    yield path
    for name, child in getattr(command, "commands", {}).items():
        yield from command_paths(child, (*path, name))


LEAVES = """
new init demo dev serve run loop status vote chat generate replay backup restore check migrate
import: preferences prompts calibration-log
export: prompts completions comparisons votes tuples training-data reflection-log calibration-log
export: drift-report
prompts: generate sources
votes: prepare
experiments: list start show extend pause resume end cancel
reward: train calibrate predict probe
drift: analyze
triggers: list explain answer
changes: list add retract
datasets: list build freeze export
retraining: prepare
trace: model vote annotator feedback
policy: train jobs status cancel
models: list promote rollback history card compare requests approve reject archive register export
users: add list group token login-link
settings: check
keys: new seal
audit: verify export
"""
PATHS = [path for name in COMMANDS for path in command_paths(load_command(name), (name,))]


def test_the_commands_are_these():
    expected = set()
    for line in LEAVES.strip().splitlines():
        group, _, names = line.rpartition(":")
        expected |= {f"{group} {name}".strip() for name in names.split()}
    groups = {path[:-1] for path in PATHS}
    assert {" ".join(path) for path in PATHS if path not in groups} == expected
    assert len(expected) == 85


@pytest.mark.parametrize("path", PATHS, ids=" ".join)
def test_every_command_explains_itself(rlhf, path):
    result = rlhf(*path, "--help")
    assert result.exit_code == 0
    assert "Usage" in result.output
    options = load_command(path[0])
    for name in path[1:]:
        options = options.commands[name]
    assert options.help
    assert all(parameter.help for parameter in options.params if parameter.name != "help")


@pytest.mark.parametrize(
    "arguments",
    [("status",), ("models", "list"), *(("export", kind) for kind in EXPORTS)],
    ids=" ".join,
)
def test_without_a_project_the_cure_is_named(rlhf, tmp_path, arguments):
    with pytest.raises(ConfigurationError, match="rlhf init"):
        rlhf(*arguments, home=tmp_path / "nothing")
    assert not (tmp_path / "nothing").exists()


@pytest.mark.parametrize(
    "arguments",
    [
        ("changes", "retract", "NUMBER", "--reason", "x"),
        ("policy", "status", "NUMBER"),
        ("triggers", "answer", "NUMBER", "nothing", "--reason", "x"),
    ],
    ids=" ".join,
)
def test_a_number_that_no_store_holds_is_refused(rlhf, initialised, arguments):
    number = str(2**63)
    result = rlhf(*(number if word == "NUMBER" else word for word in arguments))
    assert result.exit_code == 2


def test_the_command_of_the_guide_works(initialised):
    guide = Path(__file__).parents[3] / "docs" / "guides" / "extending-web.md"
    section = guide.read_text(encoding="utf-8").partition("\n## A command\n")[2]
    names = {}
    exec(re.search(r"```python\n(.*?)```", section, re.DOTALL)[1], names)
    app = typer.Typer()
    app.command()(names["days"])
    result = CliRunner().invoke(app, env={"RLHF_HOME": str(initialised)}, catch_exceptions=False)
    assert result.output == "No vote yet.\n"


def test_init_is_idempotent(rlhf, initialised):
    before = folder_hash(initialised / "mlflow" / "artifacts")
    result = rlhf("init")
    assert "champion policy demo.policy@1" in result.output
    assert folder_hash(initialised / "mlflow" / "artifacts") == before
    listed = rlhf("models", "list").output
    assert "demo.policy@1" in listed
    assert "champion" in listed
    assert "demo.policy@2" not in listed


def test_expected_error_is_one_line_and_exit_code_1(monkeypatch, capsys, tmp_path):
    monkeypatch.setenv("RLHF_HOME", str(tmp_path / "nothing"))
    monkeypatch.setattr(sys, "argv", ["rlhf", "models", "list"])
    with pytest.raises(SystemExit) as exit_:
        main()
    output = capsys.readouterr()
    assert exit_.value.code == 1
    assert output.out == ""
    assert output.err.startswith("ConfigurationError: ")
    assert len(output.err.strip().splitlines()) == 1

import json
import sys
from datetime import date

import pandas as pd
import pytest
import typer.main

from rlhf_pipeline.artefacts import Artefacts
from rlhf_pipeline.cli import app, main
from rlhf_pipeline.errors import ConfigurationError, NotEnoughData
from rlhf_pipeline.frames import COMPLETIONS, PROMPTS, check_frame
from rlhf_pipeline.prompts import PromptParams, generate
from rlhf_pipeline.prompts.dataset import read_jsonl
from rlhf_pipeline.records import folder_hash

EXPORTS = {
    "prompts": "generated_prompts.jsonl",
    "completions": "raw_completions_log.jsonl",
    "training-data": "vote_predictor_training_data.jsonl",
    "reflection-log": "meta_reflection_log.jsonl",
    "calibration-log": "calibration_log.json",
}


def command_paths(group=None, path=()):
    group = group or typer.main.get_group(app)
    yield path
    for name, command in group.commands.items():
        if hasattr(command, "commands"):
            yield from command_paths(command, (*path, name))
        else:
            yield (*path, name)


@pytest.mark.parametrize("path", list(command_paths()), ids=" ".join)
def test_every_command_explains_itself(rlhf, path):
    result = rlhf(*path, "--help")
    assert result.exit_code == 0
    assert "Usage" in result.output
    options = typer.main.get_group(app)
    for name in path:
        options = options.commands[name]
    assert options.help
    assert all(parameter.help for parameter in options.params if parameter.name != "help")


def test_37_prompts_are_37_lines_that_come_back_unchanged(rlhf, tmp_path):
    out = tmp_path / "deep" / "prompts.jsonl"
    result = rlhf("prompts", "generate", "--num-prompts", "37", "--day", "2026-03-01", "--out", str(out))
    assert result.output.startswith("37 prompts in ")
    assert len(out.read_text(encoding="utf-8").splitlines()) == 37
    made = generate(PromptParams(n=37), day="2026-03-01")
    pd.testing.assert_frame_equal(read_jsonl(out), made)
    again = tmp_path / "again.jsonl"
    rlhf("prompts", "generate", "--num-prompts", "37", "--day", "2026-03-01", "--out", str(again))
    assert again.read_bytes() == out.read_bytes()


def test_prompts_need_no_project_and_lie_below_the_home(rlhf, tmp_path):
    rlhf("prompts", "generate", "--num-prompts", "3", home=tmp_path / "home")
    assert len(read_jsonl(tmp_path / "home" / "exports" / "generated_prompts.jsonl")) == 3


@pytest.mark.parametrize("day", ["yesterday", "2026-02-30", "1.3.2026"])
def test_a_day_that_is_none_is_refused_before_anything_is_written(rlhf, tmp_path, day):
    out = tmp_path / "prompts.jsonl"
    result = rlhf("prompts", "generate", "--num-prompts", "3", "--day", day, "--out", str(out))
    assert result.exit_code == 2
    assert "%Y-%m-%d" in result.output
    assert not out.exists()


@pytest.mark.parametrize("arguments", [("runs",), ("models", "list"), *(("export", kind) for kind in EXPORTS)], ids=" ".join)
def test_without_a_project_the_cure_is_named(rlhf, tmp_path, arguments):
    with pytest.raises(ConfigurationError, match="rlhf init"):
        rlhf(*arguments, home=tmp_path / "nothing")
    assert not (tmp_path / "nothing").exists()


@pytest.mark.parametrize("kind", EXPORTS)
def test_an_empty_export_says_what_to_run_and_writes_nothing(rlhf, initialised, kind):
    with pytest.raises(NotEnoughData, match="make demo"):
        rlhf("export", kind)
    assert not (initialised / "exports" / EXPORTS[kind]).exists()


def test_init_is_idempotent(rlhf, initialised):
    before = folder_hash(initialised / "mlflow" / "artifacts")
    result = rlhf("init")
    assert "champion policy demo.policy@1" in result.output
    assert folder_hash(initialised / "mlflow" / "artifacts") == before
    listed = rlhf("models", "list").output
    assert "demo.policy@1" in listed
    assert "champion" in listed
    assert "demo.policy@2" not in listed


def test_runs_shows_what_was_tracked(rlhf):
    output = rlhf("runs").output
    assert "first policy" in output
    assert "FINISHED" in output


def test_exports_hold_every_row_under_the_named_file(rlhf, initialised, tmp_path):
    home = tmp_path / "home"
    (home / "dagster").mkdir(parents=True)
    (home / "dagster" / "dagster.yaml").write_text("")
    files = Artefacts(home / "frames")
    days = [date(2026, 1, n).isoformat() for n in (1, 2)]
    for day in days:
        files.write_frame("prompts", generate(PromptParams(n=5), day=day), day)
        files.write_frame("completions", completions(day), day)
    rlhf("export", "prompts", home=home)
    rlhf("export", "completions", home=home)
    exported = read_jsonl(home / "exports" / EXPORTS["prompts"])
    pd.testing.assert_frame_equal(check_frame(exported, PROMPTS), files.read_days("prompts", days))
    lines = [json.loads(line) for line in (home / "exports" / EXPORTS["completions"]).read_text(encoding="utf-8").splitlines()]
    assert [line["text"] for line in lines] == ["für dich ✓", "", "für dich ✓", ""]
    assert [line["error"] for line in lines] == [None, "timeout", None, "timeout"]
    elsewhere = tmp_path / "elsewhere.jsonl"
    rlhf("export", "prompts", "--out", str(elsewhere), home=home)
    assert elsewhere.read_bytes() == (home / "exports" / EXPORTS["prompts"]).read_bytes()


def completions(day):
    rows = [
        {"completion_id": f"{day}-{i}", "text": text, "error": error, "sample_index": i, "finish_reason": "error" if error else "stop"}
        for i, (text, error) in enumerate([("für dich ✓", None), ("", "timeout")])
    ]
    common = {
        "day": day, "prompt_id": "p", "backend": "template", "model_version": "template-1", "temperature": 1.0, "top_p": 1.0,
        "seed": 1, "n_prompt_tokens": 1, "n_tokens": 1, "latency_ms": 0.5,
    }  # fmt: skip
    return check_frame(pd.DataFrame([common | row for row in rows])[list(COMPLETIONS.columns)], COMPLETIONS)


def test_an_error_on_purpose_is_one_line_and_exit_code_1(monkeypatch, capsys, tmp_path):
    monkeypatch.setenv("RLHF_HOME", str(tmp_path / "nothing"))
    monkeypatch.setattr(sys, "argv", ["rlhf", "models", "list"])
    with pytest.raises(SystemExit) as exit_:
        main()
    told = capsys.readouterr()
    assert exit_.value.code == 1
    assert told.out == ""
    assert told.err.startswith("ConfigurationError: ")
    assert len(told.err.strip().splitlines()) == 1


def test_an_unknown_setting_is_one_line_too(monkeypatch, capsys):
    monkeypatch.setenv("RLHF_POLICI", "mine")
    monkeypatch.setattr(sys, "argv", ["rlhf", "prompts", "generate"])
    with pytest.raises(SystemExit):
        main()
    assert "policy" in capsys.readouterr().err

import json
import sys
from datetime import UTC, date, datetime

import pandas as pd
import pytest

from rlhf_pipeline.artefacts import Artefacts
from rlhf_pipeline.cli import COMMANDS, load_command, main
from rlhf_pipeline.cli.context import Workspace
from rlhf_pipeline.cli.init import prepare
from rlhf_pipeline.cli.tables import build_records
from rlhf_pipeline.config import Settings
from rlhf_pipeline.errors import ArtefactError, ConfigurationError, NotEnoughData
from rlhf_pipeline.frames import COMPLETIONS, PROMPTS, REFLECTIONS, check_frame
from rlhf_pipeline.prompts import PromptParams, generate
from rlhf_pipeline.prompts.dataset import read_jsonl
from rlhf_pipeline.records import (
    CalibrationMetrics,
    CalibrationReport,
    Interval,
    folder_hash,
)
from rlhf_pipeline.reflection import reflection_rows
from rlhf_pipeline.store import Store

DAY = "2026-01-01"
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
init demo dev serve run loop status vote generate replay backup restore check migrate
import: comparisons votes prompts calibration-log
export: prompts completions comparisons votes tuples training-data reflection-log calibration-log
export: drift-report
prompts: generate sources evaluation-set
votes: prepare annotators route
comparisons: offer withdraw
reward: train calibrate predict probe
drift: analyze
triggers: list explain replay answer quarantine lift
changes: list add retract
retraining: prepare
policy: train jobs status cancel
models: list promote register export
lab: run suite
users: add list roles group enable disable token login-link
settings: show check
keys: new seal
audit: verify export
"""
PATHS = [path for name in COMMANDS for path in command_paths(load_command(name), (name,))]


def test_the_commands_are_these():
    wanted = set()
    for line in LEAVES.strip().splitlines():
        group, _, names = line.rpartition(":")
        wanted |= {f"{group} {name}".strip() for name in names.split()}
    groups = {path[:-1] for path in PATHS}
    assert {" ".join(path) for path in PATHS if path not in groups} == wanted
    assert len(wanted) == 74


def test_the_app_explains_itself(rlhf):
    said = rlhf("--help").output
    assert all(name in said for name in COMMANDS)


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


def test_37_prompts_are_37_lines_that_come_back_unchanged(rlhf, tmp_path):
    out = tmp_path / "deep" / "prompts.jsonl"
    result = rlhf(
        "prompts", "generate", "--num-prompts", "37", "--day", "2026-03-01", "--out", str(out)
    )
    assert result.output.startswith("37 prompts in ")
    assert len(out.read_text(encoding="utf-8").splitlines()) == 37
    made = generate(PromptParams(n=37), day="2026-03-01")
    pd.testing.assert_frame_equal(read_jsonl(out), made)
    again = tmp_path / "again.jsonl"
    rlhf("prompts", "generate", "--num-prompts", "37", "--day", "2026-03-01", "--out", str(again))
    assert again.read_bytes() == out.read_bytes()


def test_prompts_need_no_project_and_are_stored_in_the_home(rlhf, tmp_path):
    rlhf("prompts", "generate", "--num-prompts", "3", home=tmp_path / "home")
    assert len(read_jsonl(tmp_path / "home" / "exports" / "generated_prompts.jsonl")) == 3


@pytest.mark.parametrize("day", ["yesterday", "2026-02-30", "1.3.2026"])
def test_a_day_that_is_none_is_refused_before_anything_is_written(rlhf, tmp_path, day):
    out = tmp_path / "prompts.jsonl"
    result = rlhf("prompts", "generate", "--num-prompts", "3", "--day", day, "--out", str(out))
    assert result.exit_code == 2
    assert "%Y-%m-%d" in result.output
    assert not out.exists()


@pytest.mark.parametrize(
    "arguments",
    [("status",), ("models", "list"), *(("export", kind) for kind in EXPORTS)],
    ids=" ".join,
)
def test_without_a_project_the_cure_is_named(rlhf, tmp_path, arguments):
    with pytest.raises(ConfigurationError, match="rlhf init"):
        rlhf(*arguments, home=tmp_path / "nothing")
    assert not (tmp_path / "nothing").exists()


@pytest.mark.parametrize("kind", EXPORTS)
def test_an_empty_export_names_the_command_to_run(rlhf, initialised, kind):
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


def test_exports_hold_every_row_under_the_named_file(rlhf, initialised, tmp_path):
    home = tmp_path / "home"
    prepare(Workspace(Settings(home=home)))
    files = Artefacts(home / "frames")
    days = [date(2026, 1, n).isoformat() for n in (1, 2)]
    for day in days:
        files.write_frame("prompts", generate(PromptParams(n=5), day=day), day)
        files.write_frame("completions", completions(day), day)
    rlhf("export", "prompts", home=home)
    rlhf("export", "completions", home=home)
    exported = read_jsonl(home / "exports" / EXPORTS["prompts"])
    pd.testing.assert_frame_equal(check_frame(exported, PROMPTS), files.read_days("prompts", days))
    lines = [
        json.loads(line)
        for line in (home / "exports" / EXPORTS["completions"])
        .read_text(encoding="utf-8")
        .splitlines()
    ]
    assert [line["text"] for line in lines] == ["für dich ✓", "", "für dich ✓", ""]
    assert [line["error"] for line in lines] == [None, "timeout", None, "timeout"]
    elsewhere = tmp_path / "elsewhere.jsonl"
    rlhf("export", "prompts", "--out", str(elsewhere), home=home)
    assert elsewhere.read_bytes() == (home / "exports" / EXPORTS["prompts"]).read_bytes()


def completions(day):
    rows = [
        {
            "completion_id": f"{day}-{i}",
            "text": text,
            "error": error,
            "sample_index": i,
            "finish_reason": "error" if error else "stop",
        }
        for i, (text, error) in enumerate([("für dich ✓", None), ("", "timeout")])
    ]
    common = {
        "day": day,
        "prompt_id": "p",
        "backend": "template",
        "model_version": "template-1",
        "temperature": 1.0,
        "top_p": 1.0,
        "seed": 1,
        "n_prompt_tokens": 1,
        "n_tokens": 1,
        "latency_ms": 0.5,
    }
    return check_frame(
        pd.DataFrame([common | row for row in rows])[list(COMPLETIONS.columns)], COMPLETIONS
    )


@pytest.fixture
def filled(tmp_path):
    """A home with a few rows of the logs, made without running anything."""
    home = tmp_path / "home"
    prepare(Workspace(Settings(home=home)))
    Artefacts(home / "frames").write_frame("reflection_log", reflections(), DAY)
    with Store.open(f"sqlite:///{home}/store.db") as store:
        for hour in (9, 8):  # stored out of order
            store.calibrations.add(calibration_report(hour), calibrator={})
    return home


def test_a_reflection_log_loses_no_digit_and_no_missing_value(rlhf, filled):
    rlhf("export", "reflection-log", home=filled)
    lines = (
        (filled / "exports" / EXPORTS["reflection-log"]).read_text(encoding="utf-8").splitlines()
    )
    frame = Artefacts(filled / "frames").read_frame("reflection_log", DAY)
    assert [json.loads(line) for line in lines] == reflection_rows(frame)
    voted, unvoted = (json.loads(line) for line in lines)
    assert voted["p_calibrated"] == 0.123456789012345
    assert (unvoted["seq"], unvoted["choice"], unvoted["is_error"]) == (None, None, None)


def test_a_calibration_log_is_oldest_first_and_reads_back(rlhf, filled):
    rlhf("export", "calibration-log", home=filled)
    log = json.loads((filled / "exports" / EXPORTS["calibration-log"]).read_text(encoding="utf-8"))
    assert [CalibrationReport.model_validate(entry).fitted_at.hour for entry in log] == [8, 9]


def test_exported_fractions_keep_fifteen_digits():
    assert build_records(pd.DataFrame({"p": [0.123456789012345]})) == [{"p": 0.123456789012345}]


@pytest.mark.parametrize(
    "command",
    [("export", "reflection-log"), ("export", "calibration-log"), ("prompts", "generate")],
    ids=" ".join,
)
def test_a_file_that_cannot_be_written_is_named_with_its_cure(rlhf, filled, tmp_path, command):
    with pytest.raises(ArtefactError, match=r"directory.*Name a file"):
        rlhf(*command, "--out", str(tmp_path), home=filled)
    (tmp_path / "file").write_text("mine")
    with pytest.raises(ArtefactError, match="parents are folders"):
        rlhf(*command, "--out", str(tmp_path / "file" / "log"), home=filled)
    assert (tmp_path / "file").read_text() == "mine"
    assert {path.name for path in tmp_path.iterdir()} == {"file", "home"}


@pytest.mark.parametrize("home", ["file", "file/below"])
def test_a_home_that_cannot_be_one_is_named_before_anything_is_made(rlhf, tmp_path, home):
    (tmp_path / "file").write_text("mine")
    with pytest.raises(ConfigurationError, match=r"RLHF_HOME .*file.* cannot hold a project"):
        rlhf("init", home=tmp_path / home)
    assert (tmp_path / "file").read_text() == "mine"


@pytest.mark.parametrize(
    "arguments",
    [
        ("prompts", "generate", "--seed", "-5"),
        ("prompts", "generate", "--num-prompts", "0"),
        ("prompts", "generate", "--num-prompts", "100001"),
        ("dev", "--dagster-port", "0"),
        ("dev", "--mlflow-port", "65536"),
    ],
    ids=" ".join,
)
def test_a_number_out_of_bounds_is_refused_before_anything_starts(rlhf, tmp_path, arguments):
    result = rlhf(*arguments, home=tmp_path / "home")
    assert result.exit_code == 2
    assert arguments[-2] in result.output
    assert not (tmp_path / "home").exists()


def reflections():
    prediction = {
        "day": DAY,
        "reward_model": "demo.reward_model@1",
        "calibrator": "platt@1",
        "data_hash": "d",
        "features_hash": "f",
        "score_a": 0.2,
        "score_b": 1.1,
        "p_raw": 0.2,
        "p_calibrated": 0.123456789012345,
        "predicted_at": pd.Timestamp(f"{DAY}T05:00Z"),
    }
    vote = {
        "seq": 1,
        "vote_id": "v",
        "annotator_id": "ann",
        "annotator_kind": "human",
        "choice": "a",
        "strength": 2,
        "voted_at": pd.Timestamp(f"{DAY}T08:00Z"),
        "is_error": True,
    }
    rows = [
        {**prediction, **vote, "comparison_id": "c1"},
        {**prediction, **dict.fromkeys(vote), "comparison_id": "c2"},
    ]
    return check_frame(pd.DataFrame(rows), REFLECTIONS)


def calibration_report(hour):
    number = Interval(value=0.1, low=0.0, high=0.2, n=9)
    metrics = CalibrationMetrics(
        n=9,
        accuracy=number,
        ece_equal_mass=number,
        brier=number,
        log_loss=number,
        ece_debiased=number,
        slope=None,
    )
    return CalibrationReport(
        reward_model=f"demo.reward_model@{hour}",
        method="platt",
        params={},
        raw=metrics,
        calibrated=metrics,
        candidates={"none": 0.7},
        data_hash="d",
        n_fit=9,
        fitted_at=datetime(2026, 1, 1, hour, tzinfo=UTC),
    )


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


def test_init_refuses_invalid_loop_settings_before_it_makes_anything(rlhf, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("RLHF_HOME", str(tmp_path / "new"))
    (tmp_path / "rlhf.yaml").write_text("loop:\n  reward_modle: {kind: embedding}\n")
    with pytest.raises(ConfigurationError, match=r"loop\.reward_modle .*Did you mean reward_model"):
        rlhf("init")
    assert not (tmp_path / "new").exists()

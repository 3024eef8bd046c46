"""`rlhf settings`: parameters, changes and errors of the section `loop`."""

import re
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


@pytest.mark.parametrize(
    ("values", "problem"),
    [
        ("trainer: {max_grad_nrm: 0.5}", "no field 'max_grad_nrm'. Did you mean max_grad_norm"),
        ("trainer: {learning_rate: 0.1}", "learning_rate is a setting of candidate_model itself"),
        ("trainer: {loss_type: ipo}", "loss_type is set by dpo_loss of candidate_model"),
        ("trainer: {optim: nonsense}", "optim is 'nonsense'. Input should be 'adamw_torch'"),
        ("trainer: {max_grad_norm: abc}", "max_grad_norm is 'abc'. Input should be a valid number"),
        ("trainer: {logging_strategy: 'no'}", "logging_strategy belongs to the pipeline: it reads"),
        ("trainer: {push_to_hub: true}", "push_to_hub belongs to the pipeline: it registers"),
        ("trainer: {report_to: wandb}", "report_to belongs to the pipeline: it reports to MLflow"),
        ("trainer: {save_strategy: 'no'}", "save_strategy belongs to the pipeline: it keeps whole"),
        ("trainer: {weight_decay: .inf}", "weight_decay is inf. Input should be a finite number"),
        ("launch: --nope", "launch --nope` is refused: unrecognized arguments: --nope. Correct"),
        ("launch: '--num_processes 2 \"x'", "is refused: No closing quotation. Correct it"),
        ("launch: --num_processes 2 mine.py", "is refused: 'mine.py' is not an option. Correct it"),
        ("strategy: rloo, trainer: {max_grad_nrm: 1}", "RLOOConfig has no field"),
    ],
)
def test_check_finds_errors_of_training_parameters(file: Path, values: str, problem: str) -> None:
    file.write_text(f"loop: {{candidate_model: {{{values}}}}}\n")
    with pytest.raises(ConfigurationError, match=f"loop.candidate_model: .*{re.escape(problem)}"):
        run("check")


def test_check_refuses_fields_of_the_reward_trainer(file: Path) -> None:
    own = "{kind: transformer, fine_tuning: {trainer: {report_to: wandb}}}"
    file.write_text(f"loop: {{reward_model: {own}}}\n")
    with pytest.raises(ConfigurationError, match="trainer: report_to belongs"):
        run("check")


def test_check_reads_the_file_of_training_parameters(file: Path) -> None:
    (file.parent / "p.yaml").write_text("trainer: {max_grad_nrm: 0.5}\n")
    file.write_text("loop: {candidate_model: {params_file: p.yaml}}\n")
    with pytest.raises(ConfigurationError, match="Did you mean max_grad_norm"):
        run("check")


def test_check_accepts_other_fields_of_the_trainer(file: Path) -> None:
    trainer = "{max_grad_norm: 1e-1, optim: adafactor, lr_scheduler_type: cosine}"
    file.write_text(
        f"loop: {{candidate_model: {{trainer: {trainer}, launch: --num_processes 2}}}}\n"
    )
    assert "is valid" in run("check")


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
def test_check_refuses_an_unreachable_alert_target(file: Path, target: str, problem: str) -> None:
    file.write_text(f"alert_targets: {{team: {target}}}\n")
    with pytest.raises(ConfigurationError, match=rf"alert_targets\.team: .*{problem}"):
        run("check")

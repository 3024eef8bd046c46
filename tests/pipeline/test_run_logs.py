"""The console log of a run, as the settings say."""

import json

import dagster as dg
import pytest
from dagster import _loggers

from rlhf_pipeline.application.resources.run_logs import use_run_logger
from rlhf_pipeline.core.config import Settings


@dg.op
def greet(context: dg.OpExecutionContext) -> None:
    context.log.info("hello\nyou")


@dg.job
def greeting() -> None:
    greet()


def run(settings: Settings, monkeypatch: pytest.MonkeyPatch) -> str:
    monkeypatch.setattr(_loggers, "colored_console_logger", _loggers.colored_console_logger)
    use_run_logger(settings)
    return greeting.execute_in_process().run_id


def test_json_lines_of_a_run_name_it(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
):
    run_id = run(Settings(log_format="json"), monkeypatch)
    records = [json.loads(line) for line in capsys.readouterr().err.splitlines()]
    assert {record["run_id"] for record in records} == {run_id}
    assert {record["job"] for record in records} == {"greeting"}
    [record] = [record for record in records if record["message"] == "hello\nyou"]
    assert (record["level"], record["step"]) == ("info", "greet")
    assert any(record["level"] == "debug" for record in records)

import json

import pytest
from typer.testing import CliRunner

from rlhf_pipeline.champions import Champions
from rlhf_pipeline.cli import app
from rlhf_pipeline.completions import CompletionResult
from rlhf_pipeline.errors import ConfigurationError, PromptError
from rlhf_pipeline.prompts import GENERATORS, PromptParams, read_jsonl


@pytest.fixture
def prompts(tmp_path, monkeypatch):
    monkeypatch.setenv("RLHF_HOME", str(tmp_path / "home"))
    monkeypatch.chdir(tmp_path)

    def run(*arguments):
        result = CliRunner().invoke(app, ["prompts", *map(str, arguments)])
        run.said.append(result.output)
        if result.exception is not None and not isinstance(result.exception, SystemExit):
            raise result.exception
        return result.output

    run.said = []
    return run


def test_the_sources_are_listed_with_what_they_do(prompts):
    said = prompts("sources")
    assert all(name in said for name in GENERATORS)
    assert "Fills the templates of a shipped library" in said


def test_any_parameter_is_set_by_its_name(prompts, tmp_path):
    out = tmp_path / "p.jsonl"
    shares = [
        "categories={coding: 2, safety: 1}",
        "difficulties={easy: 1, hard: 1}",
        "library=wide",
        "must_not=[regular expression]",
    ]
    said = prompts(
        "generate",
        "--num-prompts",
        60,
        "--out",
        out,
        *(part for share in shares for part in ("--set", share)),
    )
    frame = read_jsonl(out)
    assert said.startswith("60 prompts in ")
    assert "rejected (" in said
    assert frame.groupby(["category", "difficulty"]).size().tolist() == [20, 20, 10, 10]
    assert not frame["text"].str.contains("regular expression").any()
    with pytest.raises(ConfigurationError, match=r"changes no parameter.*library"):
        prompts("generate", "--set", "libary=all")


def test_too_few_good_rows_are_an_error_and_write_nothing(prompts, tmp_path):
    (tmp_path / "p.jsonl").write_text('{"text": "fine"}\n{"text": ""}\n')
    with pytest.raises(
        PromptError,
        match=r"has 1 unused new prompts, 2 were asked for.*line 2: the prompt is empty",
    ):
        prompts(
            "generate",
            "--source",
            "dataset",
            "--file",
            tmp_path / "p.jsonl",
            "--num-prompts",
            2,
            "--rejects",
            tmp_path / "r.jsonl",
        )
    assert not (tmp_path / "r.jsonl").exists()
    assert not (tmp_path / "home" / "exports").exists()


def test_the_completion_backend_writes_to_the_given_file(prompts, tmp_path, monkeypatch):
    monkeypatch.setenv("RLHF_COMPLETION_BACKEND", "template")
    out = tmp_path / "p.jsonl"
    prompts("generate", "--source", "freeform", "--written", "--num-prompts", 6, "--out", out)
    assert all("instruction" in json.loads(variables) for variables in read_jsonl(out)["variables"])


def test_backend_errors_are_reported_although_the_command_fails(prompts, tmp_path, monkeypatch):
    class Closed:
        name, model_version = "closed", "closed-1"

        def complete(self, requests):
            yield from (CompletionResult.failed("HTTP 503: closed for today") for _ in requests)

    monkeypatch.setattr(Champions, "backend", lambda self, settings: Closed())
    with pytest.raises(PromptError, match="nothing was written"):
        prompts(
            "generate",
            "--source",
            "freeform",
            "--written",
            "--num-prompts",
            2,
            "--rejects",
            tmp_path / "r.jsonl",
        )
    assert "10 not written: HTTP 503: closed for today" in prompts.said[-1]


def test_the_help_names_every_parameter(prompts):
    said = prompts("generate", "--help")
    assert all(name in said for name in set(PromptParams.model_fields) - {"n"})


def test_an_unknown_source_is_refused_with_the_known_ones(prompts):
    with pytest.raises(PromptError, match=r"No prompt source 'poems'. Known: templates"):
        prompts("generate", "--source", "poems")
